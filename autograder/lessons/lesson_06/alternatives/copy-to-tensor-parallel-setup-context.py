"""In torch's newer form: setup_context apart from forward."""

import torch
import torch.distributed as dist
from torch import Tensor


class CopyToTensorParallel(torch.autograd.Function):
    """f."""

    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        summed = torch.empty(grad_output.shape, dtype=grad_output.dtype, device=grad_output.device)
        summed.copy_(grad_output)
        dist.all_reduce(summed, group=ctx.group)
        return summed, None
