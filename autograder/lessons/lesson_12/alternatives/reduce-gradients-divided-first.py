"""Divided before it is summed."""

import torch
import torch.distributed as dist


def reduce_gradients(shared, experts, everyone, replicas):
    with torch.no_grad():
        for parameter in [*shared, *experts]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(1 / everyone.size())
    for parameter in shared:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM, group=everyone)
    for parameter in experts:
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM, group=replicas)
