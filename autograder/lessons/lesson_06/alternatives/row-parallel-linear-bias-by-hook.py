"""The sum is what forward gives; a hook on it adds the bias. The block is cut by unflattening."""

import torch
import torch.distributed as dist
from torch import nn


def _plus_bias(layer, given, total):
    return total if layer.bias is None else torch.add(total, layer.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, weight, bias, group):
        super().__init__()
        for name, tensor in (("weight", weight), ("bias", bias)):
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor))
        self.group = group
        self.register_forward_hook(_plus_bias)

    @classmethod
    def from_linear(cls, linear, group):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if linear.in_features % size != 0:
            raise ValueError(f"expected a multiple of {size} input features, found {linear.in_features}")
        cut = linear.weight.detach().unflatten(1, (size, -1))[:, rank]
        bias = linear.bias
        return cls(torch.empty_like(cut).copy_(cut), bias if bias is None else bias.detach().clone(), group)

    def forward(self, x):
        return ReduceFromTensorParallel.apply(x @ self.weight.mT, self.group)
