"""Forward returns a view of x; backward sums a copy that reshape made."""

import torch
import torch.distributed as dist
from torch import Tensor


class CopyToTensorParallel(torch.autograd.Function):
    """f."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.ranks = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        flat = grad_output.reshape(-1).clone()
        work = dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=ctx.ranks, async_op=True)
        work.wait()
        return flat.view(grad_output.shape), None
