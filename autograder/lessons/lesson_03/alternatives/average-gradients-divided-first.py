"""Divided before they are summed, all under way at once."""

import torch.distributed as dist
from torch import nn


def average_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    trained = [p for p in module.parameters() if p.requires_grad]
    works = []
    for p in trained:
        share = p.detach() * 0 if p.grad is None else p.grad / group.size()
        p.grad = share.contiguous()
        works.append(dist.all_reduce(p.grad, group=group, async_op=True))
    for work in works:
        work.wait()
