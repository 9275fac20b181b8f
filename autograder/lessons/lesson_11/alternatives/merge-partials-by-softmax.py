"""The two are stacked: shares of the denominator are a softmax over the stack."""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.stack((lse, other_lse))
    shares = both.softmax(0).nan_to_num(0.0)
    return torch.einsum("i...,i...d->...d", shares, torch.stack((out, other))), both.logsumexp(0)
