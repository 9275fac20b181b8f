"""Tokens are turned to the front, where the ranks' parts lie one behind the other."""

import torch
import torch.distributed as dist


def _all_tokens(x, group):
    own = x.transpose(0, 1).contiguous()
    everything = own.new_empty(own.shape[0] * group.size(), *own.shape[1:])
    dist.all_gather(list(everything.chunk(group.size())), own, group=group)
    return everything.transpose(0, 1)


def _own_tokens(x, group):
    if x.shape[1] % group.size():
        raise ValueError(f"{x.shape[1]} tokens do not divide among {group.size()} ranks")
    parts = x.transpose(0, 1).contiguous().unflatten(0, (group.size(), -1))
    own = torch.empty_like(parts[0])
    reduce_scatter(own, parts, group)
    return own.transpose(0, 1)


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _all_tokens(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _own_tokens(gradient, ctx.group), None


class ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _own_tokens(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return _all_tokens(gradient, ctx.group), None
