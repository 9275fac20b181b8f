"""How many came before, and floor division for rounding up."""

import torch
from torch import Tensor


def expert_capacity(tokens: int, k: int, num_experts: int, factor: float) -> int:
    if factor < 0:
        raise ValueError(f"the factor must be 0 or more, got {factor}")
    even = k * tokens / num_experts
    return int(-(-(factor * even) // 1))


def drop(gates: Tensor, experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    n, k = experts.shape
    visits = (experts.T.unsqueeze(-1) == torch.arange(num_experts, device=experts.device)).reshape(n * k, -1)
    before = visits.long().cumsum(0) - visits.long()
    late = (before * visits).sum(dim=1) >= capacity
    return gates.masked_fill(late.reshape(k, n).T, 0.0)
