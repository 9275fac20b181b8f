"""What autograd keeps of a layer, tensor by tensor."""

from labkit.model import ModelConfig


def predict_step(
    config: ModelConfig, sequence: int, micro_batch: int, element_bytes: int, fused_attention: bool
) -> dict[str, float]:
    tokens = sequence * micro_batch
    one = tokens * config.hidden * element_bytes
    attention = one + 3 * one + one  # norm, queries with keys and values, result
    mlp = one + 4 * one + 4 * one  # norm, before and after GeLU
    layer = attention + mlp + 2 * one  # what enters the two norms
    if not fused_attention:
        layer += element_bytes * config.num_heads * micro_batch * sequence * sequence
    logits = 4 * tokens * config.vocabulary
    total = config.num_layers * layer + 2 * one + logits
    return {"state": 4.0 * count_parameters(config) * element_bytes, "activations": total}
