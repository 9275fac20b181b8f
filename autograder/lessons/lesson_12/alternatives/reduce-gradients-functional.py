"""By the library's all-reduce that returns a new tensor; means as weights before the sum, in one loop."""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce


@torch.no_grad()
def reduce_gradients(shared, experts, everyone: dist.ProcessGroup, replicas: dist.ProcessGroup) -> None:
    for parameters, group in ((shared, everyone), (experts, replicas)):
        for p in parameters:
            own = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
            if p.grad is not None:
                own = own.add_(p.grad)
            p.grad = all_reduce(own, dist.ReduceOp.SUM, group).div(everyone.size())
