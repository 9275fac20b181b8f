"""A forward pass as a helper; what is recomputed runs four times instead of three."""

from labkit.model import ModelConfig


def _forward(config: ModelConfig, sequence: int) -> dict[str, float]:
    """Operations of one sequence."""
    d = config.head_size
    projections = config.hidden * d * (2 * config.num_heads + 2 * config.num_kv_heads)
    mlp = config.hidden * config.ffn * (3 if config.gated_mlp else 2)
    return {
        "weights": 2.0 * sequence * config.num_layers * (projections + mlp),
        "scores": 4.0 * sequence**2 * config.num_layers * config.num_heads * d,
        "head": 2.0 * sequence * config.hidden * config.vocabulary,
    }


def train_step_flops(config: ModelConfig, sequence: int, batch: int, recompute: str = "none") -> float:
    passes = {
        "none": {"weights": 3, "scores": 3, "head": 3},
        "selective": {"weights": 3, "scores": 4, "head": 3},
        "full": {"weights": 4, "scores": 4, "head": 3},
    }[recompute]
    return batch * sum(passes[part] * flops for part, flops in _forward(config, sequence).items())
