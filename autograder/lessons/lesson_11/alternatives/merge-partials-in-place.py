"""Four kinds of queries, each written where it belongs; in float64 inside."""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    nothing = float("-inf")
    seen, other_seen = lse != nothing, other_lse != nothing
    both = seen & other_seen
    merged = torch.zeros_like(out)
    total = torch.full_like(lse, nothing)
    for mask, part, part_lse in ((seen & ~other_seen, out, lse), (~seen & other_seen, other, other_lse)):
        merged[mask] = part[mask]
        total[mask] = part_lse[mask]
    a, b = lse[both].double(), other_lse[both].double()
    gap = (b - a).exp().clamp(max=1e300)
    share = 1 / (1 + gap)
    joined = share[:, None] * out[both].double() + (1 - share)[:, None] * other[both].double()
    merged[both] = joined.to(out.dtype)
    total[both] = (torch.maximum(a, b) + torch.log1p((-(a - b).abs()).exp())).to(lse.dtype)
    return merged, total
