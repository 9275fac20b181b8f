"""Blocks by split; the bias is added through torch.add."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class RowParallelLinear(nn.Module):
    """Input features are divided."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup) -> "RowParallelLinear":
        if linear.in_features % group.size() != 0:
            raise ValueError(f"{linear.in_features} features, {group.size()} ranks: they do not divide")
        blocks = torch.split(linear.weight.data, linear.in_features // group.size(), dim=1)
        bias = linear.bias.data.clone() if linear.bias is not None else None
        return cls(blocks[group.rank()].contiguous().clone(), bias, group)

    def forward(self, x: Tensor) -> Tensor:
        summed = ReduceFromTensorParallel.apply(F.linear(x, self.weight, bias=None), self.group)
        return summed if self.bias is None else torch.add(summed, self.bias)
