"""Bytes of one number times how many there are."""

from labkit.model import ModelConfig


def inference_bytes(num_params: int, bits: int = 16, overhead: float = 1.2) -> float:
    bytes_each = bits / 8
    return overhead * bytes_each * num_params


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, bits: int = 16) -> float:
    bytes_each = bits / 8
    one_vector = config.head_size * bytes_each
    one_token = 2 * config.num_kv_heads * one_vector * config.num_layers
    return one_token * (batch * sequence)
