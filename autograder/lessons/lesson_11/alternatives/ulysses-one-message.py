"""Queries, keys and values in one exchange, the pieces for a rank side by side."""

import torch
import torch.distributed as dist
from torch import Tensor


def swap(given: list[Tensor], group) -> Tensor:
    packed = torch.stack(given)
    into = torch.empty_like(packed)
    dist.all_to_all_single(into, packed, group=group)
    return into


class Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, *tensors):
        n = group.size()
        ctx.group, ctx.heads = group, [t.shape[1] // n for t in tensors]
        given = [torch.cat([t.chunk(n, dim=1)[i] for t in tensors], dim=1) for i in range(n)]
        joined = torch.cat(list(swap(given, group)), dim=2)
        return tuple(t.contiguous() for t in joined.split(ctx.heads, dim=1))

    @staticmethod
    def backward(ctx, *gradients):
        given = list(torch.cat(gradients, dim=1).chunk(ctx.group.size(), dim=2))
        pieces = [piece.split(ctx.heads, dim=1) for piece in swap(given, ctx.group)]
        return None, *(torch.cat(own, dim=1) for own in zip(*pieces, strict=True))


class Home(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, group):
        ctx.group = group
        return torch.cat(list(swap(list(out.chunk(group.size(), dim=2)), group)), dim=1)

    @staticmethod
    def backward(ctx, gradient):
        given = list(gradient.chunk(ctx.group.size(), dim=1))
        return torch.cat(list(swap(given, ctx.group)), dim=2), None


def ulysses_attention(q, k, v, group, attend):
    ranks = group.size()
    if q.shape[1] % ranks or k.shape[1] % ranks:
        raise ValueError(f"{ranks} ranks divide {q.shape[1]} heads and {k.shape[1]} key-value heads? No.")
    return Home.apply(attend(*Together.apply(group, q, k, v)), group)
