"""What serving a model needs: its weights, and the keys and values of every token so far."""

from __future__ import annotations

from labkit.theory.models import ModelConfig
from labkit.theory.parameters import count_parameters


def weight_bytes(num_params: float, bits: int = 16) -> float:
    """num_params x bits / 8. bits: 16, 8 or 4 for the usual formats."""
    return num_params * bits / 8


def kv_cache_elements_per_token(config: ModelConfig) -> int:
    """Numbers kept a token: a key and a value per key-value head and layer, or the latent vector and its
    rotary part.
    """
    if config.latent is not None:
        return config.num_layers * (config.latent.key_value_rank + config.latent.rotary)
    return 2 * config.num_layers * config.kv_width


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, element_bytes: float = 2) -> float:
    """The cache of `batch` sequences of `sequence` tokens each."""
    return kv_cache_elements_per_token(config) * sequence * batch * element_bytes


def inference_bytes(
    config: ModelConfig, sequence: int, batch: int = 1, bits: int = 16, overhead: float = 1.0
) -> float:
    """Weights times an overhead factor, and the 16-bit KV cache.

    overhead: 1.2 is the rule of thumb of EleutherAI's Transformer Math, for inference alone.
    """
    return weight_bytes(count_parameters(config).total, bits) * overhead + kv_cache_bytes(
        config, sequence, batch
    )
