"""delta is taken off the products' output: probabilities times (dP) minus probabilities times delta."""

import math

import torch
from torch import Tensor


def block_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, lse: Tensor, delta: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.matmul(q, k.mT) / math.sqrt(q.size(-1)) - lse[..., None]
    if diagonal:
        rows = torch.arange(q.size(-2))
        scores = torch.where(rows[:, None] >= rows, scores, -math.inf)
    p = scores.exp()
    ds = p * torch.matmul(grad_out, v.mT) - p * delta[..., None]
    ds /= math.sqrt(q.size(-1))
    return torch.matmul(ds, k), torch.matmul(ds.mT, q), torch.matmul(p.mT, grad_out)
