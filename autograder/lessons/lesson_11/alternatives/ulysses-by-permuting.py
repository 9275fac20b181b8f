"""Pieces by unflatten and movedim; the exchange is one function used both ways."""

import torch
import torch.distributed as dist
from torch import Tensor


def trade(x: Tensor, cut: int, joined: int, group) -> Tensor:
    n = dist.get_world_size(group)
    given = x.unflatten(cut, (n, x.shape[cut] // n)).movedim(cut, 0).contiguous()
    got = torch.empty_like(given)
    dist.all_to_all_single(got, given, group=group)
    return got.movedim(0, joined).flatten(joined, joined + 1)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, joined, group):
        ctx.way = (joined % x.dim(), cut % x.dim(), group)
        return trade(x, cut % x.dim(), joined % x.dim(), group)

    @staticmethod
    def backward(ctx, grad):
        return trade(grad, *ctx.way), None, None, None


def ulysses_attention(q, k, v, group, attend):
    n = dist.get_world_size(group)
    for name, heads in (("heads", q.shape[1]), ("key-value heads", k.shape[1])):
        if heads % n != 0:
            raise ValueError(f"{n} ranks cannot share {heads} {name}")
    out = attend(*(Exchange.apply(t, 1, 2, group) for t in (q, k, v)))
    return Exchange.apply(out, 2, 1, group)
