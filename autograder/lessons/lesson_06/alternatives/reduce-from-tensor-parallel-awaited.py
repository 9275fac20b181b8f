"""The sum is started on a new tensor of its own and awaited; the context is not used at all."""

import torch
import torch.distributed as dist


class ReduceFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        total += x
        work = dist.all_reduce(total, dist.ReduceOp.SUM, group, async_op=True)
        work.wait()
        return total

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone(), None
