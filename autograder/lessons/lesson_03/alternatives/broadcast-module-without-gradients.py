"""Under no_grad, by the rank in the world, and buffers first. Who is alone sends nothing."""

import itertools

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def broadcast_module(module: nn.Module, group: dist.ProcessGroup) -> None:
    if dist.get_world_size(group) == 1:
        return
    first = dist.get_global_rank(group, 0)
    for tensor in itertools.chain(module.buffers(), module.parameters()):
        buffer = tensor.contiguous()
        dist.broadcast(buffer, src=first, group=group)
        tensor.copy_(buffer)
