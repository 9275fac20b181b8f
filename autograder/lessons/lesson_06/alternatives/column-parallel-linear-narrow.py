"""Blocks by narrow; the gather goes into one tensor with the ranks in front."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class GatherFromTensorParallel(torch.autograd.Function):
    """Slices are joined."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.width = group, x.shape[-1]
        n = group.size()
        everything = x.new_empty(n * x.numel())
        dist.all_gather_into_tensor(everything, x.flatten(), group=group)
        return everything.view(n, *x.shape).movedim(0, -2).reshape(*x.shape[:-1], n * ctx.width)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.narrow(-1, ctx.group.rank() * ctx.width, ctx.width).contiguous(), None


class ColumnParallelLinear(nn.Module):
    """Output features are divided."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, gather_output: bool = False
    ):
        super().__init__()
        self.weight = nn.Parameter(weight)
        if bias is None:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(bias)
        self.group, self.gather_output = group, gather_output

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, group: dist.ProcessGroup, gather_output: bool = False
    ) -> "ColumnParallelLinear":
        rows, left = divmod(linear.out_features, group.size())
        if left:
            raise ValueError(f"{group.size()} ranks cannot share {linear.out_features} outputs evenly")

        def own(whole: Tensor) -> Tensor:
            return whole.detach().narrow(0, group.rank() * rows, rows).clone()

        bias = own(linear.bias) if linear.bias is not None else None
        return cls(own(linear.weight), bias, group, gather_output)

    def forward(self, x: Tensor) -> Tensor:
        inside = CopyToTensorParallel.apply(x, self.group)
        out = inside @ self.weight.t()
        if self.bias is not None:
            out = out + self.bias
        if self.gather_output:
            out = GatherFromTensorParallel.apply(out, self.group)
        return out
