"""Visits are sorted by expert, stably: the number of one is how far it stands from its expert's first."""

import torch
from torch import Tensor


def expert_capacity(tokens: int, k: int, num_experts: int, factor: float) -> int:
    if factor < 0:
        raise ValueError(f"a capacity factor cannot be negative: {factor}")
    return int(-(-factor * k * tokens // num_experts))


def drop(gates: Tensor, experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    row = experts.t().reshape(-1)
    order = row.argsort(stable=True)
    counts = torch.bincount(row, minlength=num_experts)
    first = counts.cumsum(0) - counts
    number = torch.empty_like(row)
    number[order] = torch.arange(len(row), device=row.device) - first[row[order]]
    room = (number < capacity).reshape(experts.shape[1], -1).t()
    return torch.where(room, gates, torch.zeros_like(gates))
