"""Each gradient travels in a buffer of its own; None becomes zeros of the parameter's shape."""

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def average_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    world_size = dist.get_world_size(group)
    for parameter in filter(lambda p: p.requires_grad, module.parameters()):
        buffer = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        if parameter.grad is not None:
            buffer += parameter.grad
        dist.all_reduce(buffer, dist.ReduceOp.SUM, group)
        parameter.grad = buffer.mul_(1 / world_size)
