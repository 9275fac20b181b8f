"""Every stored tensor of a layer by itself, as Korthikanti et al. list them."""

from labkit.model import ModelConfig


def activation_bytes(
    config: ModelConfig,
    sequence: int,
    micro_batch: int,
    recompute: str = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    fused_attention: bool = False,
) -> float:
    if recompute not in {"none", "selective", "full"}:
        raise ValueError(f"recompute is {recompute!r}; expected none, selective or full")
    tokens = sequence * micro_batch
    unit = tokens * config.hidden
    if recompute == "full":
        return 2.0 * unit * config.num_layers
    t = tensor_parallel
    outside = 2 * 2 + 2 * 2 + 2 * 1  # inputs of both norms, inputs of both parts, two dropout masks
    inside = (2 + 2 + 2 + 2) + (8 + 8)  # queries, keys, values, what the projection reads; the MLP's two
    layer = unit * (outside / (t if sequence_parallel else 1) + inside / t)
    if recompute == "none" and not fused_attention:
        layer += 5 * config.num_heads * sequence * tokens / t
    return layer * config.num_layers
