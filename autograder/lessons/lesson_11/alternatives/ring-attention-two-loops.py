"""Its own forward; keys of others are attended to first, a rank's own last, by larger blocks and in dicts."""

import math

import torch
import torch.distributed as dist
from torch import Tensor


def mask_of(queries: Tensor, keys: Tensor) -> Tensor:
    """[c, e]: whether a query at one position sees a key at another."""
    return queries[:, None] >= keys[None, :]


def positions(chunk: int, c: int) -> Tensor:
    return torch.arange(chunk * c, (chunk + 1) * c)


def visible(rank: int, source: int, n: int, c: int):
    """Slices of queries and of keys, and a mask where one is needed."""
    both, first, second = slice(0, 2 * c), slice(0, c), slice(c, 2 * c)
    if source < rank:
        return [(both, first, None)]
    if source > rank:
        return [(second, both, None)]
    triangle = mask_of(positions(0, c), positions(0, c))
    return [(first, first, triangle), (second, first, None), (second, second, triangle)]


class RingAttention(torch.autograd.Function):
    @staticmethod
    def scores(q, k, mask):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores if mask is None else scores.masked_fill(~mask.to(q.device), -math.inf)

    @staticmethod
    def forward(ctx, q, k, v, group):
        ctx.group = group
        n, me = dist.get_world_size(group), dist.get_rank(group)
        c = q.shape[-2] // 2
        top = torch.full_like(q[..., 0], -math.inf)
        below, above = torch.zeros_like(top), torch.zeros_like(q)
        keys, values = k, v
        for step in range(n):
            works = []
            if step < n - 1:
                coming, works = start_passing([keys, values], group)
            for rows, columns, mask in visible(me, (me - step) % n, n, c):
                s = RingAttention.scores(q[..., rows, :], keys[..., columns, :], mask)
                high = torch.maximum(top[..., rows], s.amax(-1))
                fade = (top[..., rows] - high).exp()
                p = (s - high[..., None]).exp()
                below[..., rows] = below[..., rows] * fade + p.sum(-1)
                above[..., rows, :] = above[..., rows, :] * fade[..., None] + p @ values[..., columns, :]
                top[..., rows] = high
            for work in works:
                work.wait()
            if step < n - 1:
                keys, values = coming
        out, lse = above / below[..., None], top + below.log()
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        group = ctx.group
        n, me = dist.get_world_size(group), dist.get_rank(group)
        c = q.shape[-2] // 2
        scale = 1 / math.sqrt(q.shape[-1])
        delta = (out * grad_out).sum(-1, keepdim=True)
        dq = torch.zeros_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for step in range(n):
            if step < n - 1:
                coming, works = start_passing([k, v], group)
            for rows, columns, mask in visible(me, (me - step) % n, n, c):
                s = RingAttention.scores(q[..., rows, :], k[..., columns, :], mask)
                p = (s - lse[..., rows].unsqueeze(-1)).exp()
                go = grad_out[..., rows, :]
                ds = p * (go @ v[..., columns, :].mT - delta[..., rows, :]) * scale
                dq[..., rows, :] += ds @ k[..., columns, :]
                dk[..., columns, :] += ds.mT @ q[..., rows, :]
                dv[..., columns, :] += p.mT @ go
            if step < n - 1:
                for work in works:
                    work.wait()
                k, v = coming
            if n > 1:
                [dk, dv], works = start_passing([dk, dv], group)
                for work in works:
                    work.wait()
        return dq, dk, dv, None
