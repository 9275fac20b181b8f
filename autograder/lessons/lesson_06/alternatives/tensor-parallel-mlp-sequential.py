"""Built from keyword arguments; GeLU as a module."""

import torch.distributed as dist
from torch import Tensor, nn


class TensorParallelMLP(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self, up: ColumnParallelLinear, down: RowParallelLinear):
        super().__init__()
        self.up = up
        self.activation = nn.GELU()
        self.down = down

    @classmethod
    def from_mlp(cls, mlp: nn.Module, group: dist.ProcessGroup) -> "TensorParallelMLP":
        return cls(
            down=RowParallelLinear.from_linear(linear=mlp.down, group=group),
            up=ColumnParallelLinear.from_linear(linear=mlp.up, group=group, gather_output=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        inner = self.activation(inner)
        return self.down(inner)
