"""One layer after the other, with helpers."""

from labkit.model import ModelConfig


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(config: ModelConfig) -> int:
    return config.hidden * (2 if config.norm == "layernorm" else 1)


def _layer(config: ModelConfig) -> int:
    h, d = config.hidden, config.head_size
    qkv, everywhere = config.biases in ("qkv", "all"), config.biases == "all"
    total = _linear(h, config.num_heads * d, qkv) + 2 * _linear(h, config.num_kv_heads * d, qkv)
    total += _linear(config.num_heads * d, h, everywhere) + _linear(config.ffn, h, everywhere)
    for _ in range(1 + config.gated_mlp):
        total += _linear(h, config.ffn, everywhere)
    return total + 2 * _norm(config)


def count_parameters(config: ModelConfig) -> int:
    total = config.vocabulary * config.hidden * (1 if config.tied_embeddings else 2)
    if config.positions == "learned":
        total += config.max_sequence * config.hidden
    for _ in range(config.num_layers):
        total += _layer(config)
    return total + _norm(config)
