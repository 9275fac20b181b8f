"""The second part's share is a sigmoid of the difference of the two."""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    nothing = lse.isneginf() & other_lse.isneginf()
    share = torch.sigmoid(torch.where(nothing, 0.0, other_lse - lse)).unsqueeze(-1)
    merged = torch.lerp(out, other, share.expand_as(out))
    merged = merged.masked_fill(nothing.unsqueeze(-1), 0.0)
    return merged, torch.stack((lse, other_lse)).logsumexp(0)
