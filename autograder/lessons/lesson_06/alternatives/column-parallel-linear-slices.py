"""Blocks by slices, under no_grad; the gather starts from a list of views of one buffer."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class GatherFromTensorParallel(torch.autograd.Function):
    """Slices are joined."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.me, ctx.n = dist.get_rank(group), dist.get_world_size(group)
        mine = x.clone(memory_format=torch.contiguous_format)
        slices = list(torch.empty((ctx.n, *x.shape), dtype=x.dtype, device=x.device).unbind(0))
        dist.all_gather(slices, mine, group=group)
        return torch.cat(slices, dim=x.dim() - 1)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        width = grad_output.shape[-1] // ctx.n
        return grad_output[..., ctx.me * width : (ctx.me + 1) * width].clone(), None


class ColumnParallelLinear(nn.Module):
    """Output features are divided."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, gather_output: bool = False
    ):
        super().__init__()
        self.group = group
        self.gather_output = gather_output
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone()) if bias is not None else None

    @classmethod
    @torch.no_grad()
    def from_linear(
        cls, linear: nn.Linear, group: dist.ProcessGroup, gather_output: bool = False
    ) -> "ColumnParallelLinear":
        rank, size, out = dist.get_rank(group), dist.get_world_size(group), linear.weight.shape[0]
        if out % size != 0:
            raise ValueError(f"out_features {out}, ranks {size}")
        block = slice(rank * out // size, (rank + 1) * out // size)
        return cls(
            linear.weight[block], None if linear.bias is None else linear.bias[block], group, gather_output
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(CopyToTensorParallel.apply(x, self.group), self.weight, self.bias)
        if not self.gather_output:
            return out
        return GatherFromTensorParallel.apply(out, self.group)
