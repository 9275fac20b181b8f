"""A subclass of nn.Linear, cut by indices, with einsum; the gathered parts are the last but one dimension."""

import torch
import torch.distributed as dist
from torch import nn


class GatherFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.size, ctx.rank = dist.get_world_size(group), dist.get_rank(group)
        whole = torch.empty(ctx.size, x.numel(), dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(whole, x.reshape(1, -1), group=group)
        return whole.unflatten(1, x.shape).movedim(0, -2).flatten(-2)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.unflatten(-1, (ctx.size, -1)).select(-2, ctx.rank), None


class ColumnParallelLinear(nn.Linear):
    def __init__(self, weight, bias, group, gather_output=False):
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_parameter("weight", nn.Parameter(weight))
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        self.group, self.gather_output = group, gather_output

    @classmethod
    def from_linear(cls, linear, group, gather_output=False):
        size = dist.get_world_size(group)
        share, rest = divmod(linear.out_features, size)
        if rest:
            raise ValueError(f"{size} ranks cannot have equal shares of {linear.out_features} features")
        own = torch.arange(share, device=linear.weight.device) + share * dist.get_rank(group)
        with torch.no_grad():
            weight = linear.weight.index_select(0, own)
            bias = None if linear.bias is None else linear.bias.index_select(0, own)
        return cls(weight, bias, group, gather_output)

    def forward(self, x):
        entered = CopyToTensorParallel.apply(x, self.group)
        out = torch.einsum("...i,oi->...o", entered, self.weight)
        if self.bias is not None:
            out = out + self.bias
        return GatherFromTensorParallel.apply(out, self.group) if self.gather_output else out
