"""Numerators and denominators from the larger lse on, divided at the end."""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.maximum(lse, other_lse)
    start = torch.where(torch.isfinite(largest), largest, torch.zeros_like(largest))
    a, b = torch.exp(lse - start), torch.exp(other_lse - start)
    total = a + b
    numerator = out * a[..., None] + other * b[..., None]
    merged = numerator / torch.where(total > 0, total, torch.ones_like(total))[..., None]
    return merged, start + total.log()
