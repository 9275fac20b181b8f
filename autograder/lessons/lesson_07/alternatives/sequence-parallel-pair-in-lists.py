"""Lists of slices, gathered and scattered by torch's calls for lists."""

import torch
import torch.distributed as dist


def _gathered(x, group):
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts, dim=1)


def _scattered(x, group):
    size = dist.get_world_size(group)
    if x.size(1) % size != 0:
        raise ValueError(f"cannot divide {x.size(1)} tokens among {size} ranks")
    slices = [part.contiguous() for part in x.split(x.size(1) // size, dim=1)]
    own = torch.empty_like(slices[0])
    dist.reduce_scatter(own, slices, group=group)
    return own


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.ranks = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _scattered(gradient, ctx.ranks), None


class ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.ranks = group
        return _scattered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _gathered(gradient, ctx.ranks), None
