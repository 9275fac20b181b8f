"""All bits first, then bytes."""

from labkit.model import ModelConfig


def inference_bytes(num_params: int, bits: int = 16, overhead: float = 1.2) -> float:
    all_bits = num_params * bits
    return all_bits * overhead / 8


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, bits: int = 16) -> float:
    tokens = batch * sequence
    width = config.num_kv_heads * config.head_size
    all_bits = sum(
        bits * tokens * width for _layer in range(config.num_layers) for _which in ("key", "value")
    )
    return all_bits / 8
