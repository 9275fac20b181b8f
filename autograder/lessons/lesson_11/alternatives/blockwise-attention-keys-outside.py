"""Keys outside, queries inside: running maximum, numerator and denominator of every row, by hand."""

import math

import torch
from torch import Tensor


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    s, scale = q.shape[-2], q.shape[-1] ** -0.5
    top = q.new_full(q.shape[:-1], -math.inf)
    below = torch.zeros_like(top)
    above = torch.zeros_like(v)
    for j in range(0, s, block):
        keys, values = k[..., j : j + block, :], v[..., j : j + block, :]
        for i in range(j, s, block):
            rows = slice(i, i + block)
            scores = torch.einsum("...cd,...ed->...ce", q[..., rows, :] * scale, keys)
            if i == j:
                seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
                scores = torch.where(seen, scores, -math.inf)
            highest = torch.maximum(top[..., rows], scores.amax(-1))
            shrink = (top[..., rows] - highest).exp()
            weights = (scores - highest[..., None]).exp()
            below[..., rows] = below[..., rows] * shrink + weights.sum(-1)
            above[..., rows, :] = above[..., rows, :] * shrink[..., None] + weights @ values
            top[..., rows] = highest
    return above / below[..., None], top + below.log()
