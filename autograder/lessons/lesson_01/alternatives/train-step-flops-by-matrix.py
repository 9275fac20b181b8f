"""2 operations a weight and token, and the attention's two products, each thrice."""

from labkit.model import ModelConfig


def train_step_flops(config: ModelConfig, sequence: int, batch: int, recompute: str = "none") -> float:
    tokens = sequence * batch
    h, q, kv = config.hidden, config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    matmuls = [(h, q), (h, kv), (h, kv), (q, h), (config.ffn, h)] + [(h, config.ffn)] * (1 + config.gated_mlp)
    dense = config.num_layers * sum(2 * tokens * rows * columns for rows, columns in matmuls)
    attention = config.num_layers * 4 * sequence * sequence * batch * q
    logits = 2 * tokens * h * config.vocabulary
    total = 3 * (dense + attention + logits)
    if recompute == "selective":
        total += attention
    if recompute == "full":
        total += dense + attention
    return total
