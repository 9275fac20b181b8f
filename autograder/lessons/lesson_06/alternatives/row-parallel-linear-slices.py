"""Blocks by slices, and the product by matmul."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class RowParallelLinear(nn.Module):
    """Input features are divided."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self.group = group

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup) -> "RowParallelLinear":
        t, inputs = dist.get_world_size(group), linear.in_features
        if inputs % t:
            raise ValueError(f"{inputs} inputs for {t} ranks")
        width = inputs // t
        begin = width * dist.get_rank(group)
        with torch.no_grad():
            weight = torch.clone(linear.weight[:, begin : begin + width])
            bias = None if linear.bias is None else torch.clone(linear.bias)
        return cls(weight, bias, group)

    def forward(self, x: Tensor) -> Tensor:
        result = ReduceFromTensorParallel.apply(torch.matmul(x, self.weight.mT), self.group)
        if self.bias is not None:
            result = result + self.bias
        return result
