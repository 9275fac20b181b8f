"""Counted from the shapes of matrices."""

import math

from labkit.theory import ModelConfig


def _size(shapes: list[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _mlp(hidden: int, width: int) -> list[tuple[int, ...]]:
    return [(width, hidden), (width, hidden), (hidden, width)]


def count_parameters(config: ModelConfig, attention: int) -> tuple[int, int]:
    mixture, h = config.mixture, config.hidden
    outside = [(config.vocabulary, h), (config.vocabulary, h), (h,)]
    both = _size(outside) + config.num_layers * (attention + _size([(h,), (h,)]))
    dense = _size(_mlp(h, config.ffn))
    if mixture is None:
        return both + config.num_layers * dense, both + config.num_layers * dense
    sparse_layers = config.num_layers - mixture.dense_layers
    both += mixture.dense_layers * dense + sparse_layers * mixture.num_experts * h
    expert = _size(_mlp(h, mixture.expert_ffn)) * sparse_layers
    return (
        both + (mixture.num_experts + mixture.shared_experts) * expert,
        both + (mixture.active_experts + mixture.shared_experts) * expert,
    )


def expert_flops(config: ModelConfig, tokens: int) -> int:
    mixture = config.mixture
    assert mixture is not None
    visited = mixture.active_experts + mixture.shared_experts
    each = _size([(mixture.num_experts, config.hidden), *_mlp(config.hidden, mixture.expert_ffn) * visited])
    return 2 * tokens * each


def dispatch_bytes(config: ModelConfig, tokens: int, ranks: int, element: int = 2) -> float:
    mixture = config.mixture
    if mixture is None:
        raise ValueError("this model has no experts")
    if mixture.num_experts % ranks != 0:
        raise ValueError(f"{mixture.num_experts} experts cannot be divided over {ranks} ranks")
    row = config.hidden * element
    return 2 * row * tokens * mixture.active_experts * (1 - 1 / ranks)
