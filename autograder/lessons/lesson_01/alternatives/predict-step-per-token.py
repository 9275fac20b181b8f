"""Numbers of one token in one layer: 16 h, and a row of probabilities for every head."""

from labkit.model import ModelConfig


def predict_step(
    config: ModelConfig, sequence: int, micro_batch: int, element_bytes: int, fused_attention: bool
) -> dict[str, float]:
    h, layers = config.hidden, config.num_layers
    numbers = layers * 16 * h + 2 * h
    if not fused_attention:
        numbers += layers * config.num_heads * sequence
    per_token = element_bytes * numbers + 4 * config.vocabulary
    parts = {"weights": 1, "gradients": 1, "moments": 2}
    parameters = count_parameters(config)
    return {
        "state": sum(copies * element_bytes * parameters for copies in parts.values()),
        "activations": per_token * sequence * micro_batch,
    }
