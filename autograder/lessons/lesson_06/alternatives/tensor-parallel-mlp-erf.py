"""GeLU from its definition."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn


class TensorParallelMLP(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self, up: ColumnParallelLinear, down: RowParallelLinear):
        nn.Module.__init__(self)
        self.up, self.down = up, down

    @classmethod
    def from_mlp(cls, mlp: nn.Module, group: dist.ProcessGroup) -> "TensorParallelMLP":
        parts = {"up": ColumnParallelLinear.from_linear(mlp.up, group)}
        parts["down"] = RowParallelLinear.from_linear(mlp.down, group)
        return cls(**parts)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up.forward(x)
        return self.down(h * 0.5 * (1 + torch.erf(h / math.sqrt(2))))
