"""Sorted by a number that holds expert and copy; the inverse by scattering."""

import torch
from torch import Tensor


def permute(tokens: Tensor, experts: Tensor, num_experts: int):
    n, k = experts.shape
    keys = experts.flatten() * (n * k) + torch.arange(n * k, device=experts.device)
    places = keys.sort().values % max(n * k, 1)
    counts = torch.zeros(num_experts, dtype=torch.long, device=experts.device)
    counts.scatter_add_(0, experts.flatten(), torch.ones_like(experts.flatten()))
    return tokens.repeat_interleave(k, dim=0)[places], places, counts


def unpermute(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(len(places), device=places.device)
    copies = rows[inverse].unflatten(0, gates.shape)
    out = 0
    for choice in range(gates.shape[1]):
        out = out + copies[:, choice] * gates[:, choice, None]
    return out.to(rows.dtype)
