"""Autograd of a sum whose gradients are those of the block, as lse and delta are constants in it."""

import math

import torch
from torch import Tensor


def block_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, lse: Tensor, delta: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if diagonal:  # before the exponential: scores of later keys may be far above lse
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        probabilities = (scores - lse.detach()[..., None]).exp()
        total = (grad_out.detach() * (probabilities @ v)).sum() - (
            probabilities.sum(-1) * delta.detach()
        ).sum()
    dq, dk, dv = torch.autograd.grad(total, (q, k, v))
    return dq, dk, dv
