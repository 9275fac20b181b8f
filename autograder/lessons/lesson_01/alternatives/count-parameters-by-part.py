"""Shapes of all matrices and vectors, added up."""

from math import prod

from labkit.model import ModelConfig


def count_parameters(config: ModelConfig) -> int:
    h, f, v = config.hidden, config.ffn, config.vocabulary
    q = config.num_heads * config.head_size
    kv = config.num_kv_heads * config.head_size
    shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, f), (f, h)]
    vectors = []
    if config.gated_mlp:
        shapes.append((h, f))
    if config.biases != "none":
        vectors += [q, kv, kv]
    if config.biases == "all":
        vectors += [h, f, h] + ([f] if config.gated_mlp else [])
    norm = h * {"layernorm": 2, "rmsnorm": 1}[config.norm]
    layer = sum(prod(shape) for shape in shapes) + sum(vectors) + 2 * norm
    tables = v if config.tied_embeddings else 2 * v
    if config.positions == "learned":
        tables += config.max_sequence
    return layer * config.num_layers + norm + tables * h
