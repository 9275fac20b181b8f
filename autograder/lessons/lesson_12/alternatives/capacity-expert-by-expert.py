"""The visits of each expert, cut off."""

import math

import torch
from torch import Tensor


def expert_capacity(tokens: int, k: int, num_experts: int, factor: float) -> int:
    if factor < 0:
        raise ValueError(f"the factor must be 0 or more, got {factor}")
    return math.ceil(factor * k * tokens / num_experts)


def drop(gates: Tensor, experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    in_order = experts.T.reshape(-1)
    kept = torch.ones_like(in_order, dtype=torch.bool)
    for expert in range(num_experts):
        visits = torch.nonzero(in_order == expert).flatten()
        kept[visits[capacity:]] = False
    return gates * kept.reshape(experts.shape[1], experts.shape[0]).T
