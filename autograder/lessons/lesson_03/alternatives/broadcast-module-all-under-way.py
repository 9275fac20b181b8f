"""All of them start before the first is waited for, and go through a buffer of their own."""

import torch
import torch.distributed as dist
from torch import nn


def broadcast_module(module: nn.Module, group: dist.ProcessGroup) -> None:
    tensors = list(module.parameters()) + list(module.buffers())
    copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    works = [dist.broadcast(copy, group_src=0, group=group, async_op=True) for copy in copies]
    for tensor, copy, work in zip(tensors, copies, works, strict=True):
        work.wait()
        tensor.data.copy_(copy)
