"""Each copy's place is counted; sums by scatter_add."""

import torch
from torch import Tensor


def permute(tokens: Tensor, experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    n, k = experts.shape
    flat = experts.flatten()
    visits = torch.nn.functional.one_hot(flat, num_experts)
    counts = visits.sum(dim=0)
    starts = counts.cumsum(0) - counts
    position = starts[flat] + (visits.cumsum(0) - 1).gather(1, flat.unsqueeze(1)).squeeze(1)
    copies = torch.arange(n * k, device=tokens.device)
    places = torch.zeros_like(copies).scatter(0, position, copies)
    rows = tokens.unsqueeze(1).expand(n, k, tokens.shape[1]).flatten(0, 1).index_select(0, places)
    return rows, places, counts


def unpermute(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    wide = torch.promote_types(rows.dtype, gates.dtype)
    n, k = gates.shape
    weighted = rows.to(wide) * gates.to(wide).flatten().index_select(0, places).unsqueeze(1)
    token = torch.div(places, k, rounding_mode="floor").unsqueeze(1).expand_as(weighted)
    out = torch.zeros(n, rows.shape[1], dtype=wide, device=rows.device)
    return out.scatter_add(0, token, weighted).to(rows.dtype)
