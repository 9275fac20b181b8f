"""Copies first, then their order; the gates' sum is a product of each token's own rows."""

import torch
from torch import Tensor


def permute(tokens: Tensor, experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    flat = experts.reshape(-1)
    places = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    rows = tokens.repeat_interleave(experts.shape[1], dim=0)[places]
    return rows, places, counts


def unpermute(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    wide = torch.promote_types(rows.dtype, gates.dtype)
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places), device=places.device)
    n, k = gates.shape
    copies = rows[back].reshape(n, k, rows.shape[1]).to(wide)
    return torch.einsum("nk,nkh->nh", gates.to(wide), copies).to(rows.dtype)
