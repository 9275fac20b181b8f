"""Bytes of one token in one layer, times tokens and layers."""

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
    h, a = config.hidden, config.num_heads
    if recompute == "full":
        per_token = 2.0 * h
    elif recompute in ("none", "selective"):
        whole, cut = (0, 34) if sequence_parallel else (10, 24)
        per_token = (whole + cut / tensor_parallel) * h
        if recompute == "none" and not fused_attention:
            per_token += 5 * a * sequence / tensor_parallel
    else:
        raise ValueError(f'one of "none", "selective" and "full" was expected, not {recompute!r}')
    return per_token * sequence * micro_batch * config.num_layers
