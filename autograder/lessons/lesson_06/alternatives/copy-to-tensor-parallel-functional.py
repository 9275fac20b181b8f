"""Torch's functional collectives, which give a new tensor; backward may be gone through once."""

import torch
import torch.distributed._functional_collectives as functional
from torch.autograd.function import once_differentiable


class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        total = functional.all_reduce(grad_output.contiguous(), "sum", ctx.group)
        return functional.wait_tensor(total), None
