"""The context is set up apart from forward; places in one tensor are filled, and calls are awaited."""

import torch
import torch.distributed as dist


def _collect(own, group):
    ranks = dist.get_world_size(group)
    pieces = torch.empty((ranks, *own.shape), dtype=own.dtype, device=own.device)
    dist.all_gather([*pieces], own.contiguous(), group=group, async_op=True).wait()
    return torch.cat(pieces.unbind(), dim=1)


def _spread(partial, group):
    ranks, tokens = dist.get_world_size(group), partial.shape[1]
    length, over = divmod(tokens, ranks)
    if over:
        raise ValueError(f"cannot cut {tokens} tokens into {ranks} equal slices")
    pieces = partial.new_empty(ranks, partial.shape[0], length, *partial.shape[2:])
    for rank in range(ranks):
        pieces[rank] = partial.narrow(1, rank * length, length)
    mine = torch.zeros_like(pieces[0])
    reduce_scatter(mine, pieces, group)
    return mine


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(x, group):
        return _collect(x, group)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (_, ctx.ranks) = inputs

    @staticmethod
    def backward(ctx, gradient):
        return _spread(gradient, ctx.ranks), None


class ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(partial, group):
        return _spread(partial, group)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (_, ctx.ranks) = inputs

    @staticmethod
    def backward(ctx, gradient):
        return _collect(gradient, ctx.ranks), None
