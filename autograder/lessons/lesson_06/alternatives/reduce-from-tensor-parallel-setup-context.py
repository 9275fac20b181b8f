"""In torch's newer form, and the gradient is copied."""

import torch
import torch.distributed as dist
from torch import Tensor


class ReduceFromTensorParallel(torch.autograd.Function):
    """g."""

    @staticmethod
    def forward(x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.detach().flatten().clone()
        dist.all_reduce(total, group=group)
        return total.reshape(x.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output.clone(), None
