"""The sum is made in a new buffer; the gradient passes as a view."""

import torch
import torch.distributed as dist
from torch import Tensor


class ReduceFromTensorParallel(torch.autograd.Function):
    """g."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        buffer = x.new_empty(x.shape)
        buffer.copy_(x)
        dist.all_reduce(buffer, group=group, async_op=True).wait()
        return buffer

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.view_as(grad_output), None
