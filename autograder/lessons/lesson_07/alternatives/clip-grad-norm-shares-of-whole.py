"""Each rank counts a t-th of the whole gradients' squares, so that one sum gives everything."""

import torch
import torch.distributed as dist


def clip_grad_norm(cut, whole, max_norm, group):
    total = torch.zeros((), dtype=torch.float64)
    for parameters, share in ((cut, 1.0), (whole, 1.0 / dist.get_world_size(group))):
        for parameter in parameters:
            if parameter.grad is not None:
                total += share * parameter.grad.double().pow(2).sum()
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    norm = total.sqrt()
    scale = min(1.0, max_norm / norm.item()) if norm else 1.0
    if scale < 1:
        for parameter in (*cut, *whole):
            if parameter.grad is not None:
                parameter.grad = parameter.grad * scale
    return norm
