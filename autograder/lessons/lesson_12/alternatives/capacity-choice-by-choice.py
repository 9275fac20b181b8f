"""One choice after the other, with what the earlier ones have taken."""

import math

import torch
from torch import Tensor


def expert_capacity(tokens: int, k: int, num_experts: int, factor: float) -> int:
    if factor < 0.0:
        raise ValueError(f"factor {factor} is below 0")
    return math.ceil(tokens * k * factor / num_experts)


def drop(gates: Tensor, experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    taken = torch.zeros(num_experts, dtype=torch.long, device=experts.device)
    columns = []
    for choice in experts.unbind(1):
        table = (choice.unsqueeze(1) == torch.arange(num_experts, device=experts.device)).long()
        before = table.cumsum(0) - table + taken
        columns.append(before.gather(1, choice.unsqueeze(1)).squeeze(1) < capacity)
        taken = taken + table.sum(0)
    return gates.masked_fill(~torch.stack(columns, dim=1), 0.0)
