"""The value without a graph, and a push that is 0 and has the gradient."""

import torch
import torch.distributed as dist
from torch import Tensor


def _everywhere(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = own.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    return total


def balance_loss(probabilities: Tensor, experts: Tensor, group: dist.ProcessGroup) -> Tensor:
    num_experts = probabilities.shape[1]
    visits = torch.nn.functional.one_hot(experts, num_experts).sum(dim=(0, 1))
    with torch.no_grad():
        own = torch.stack([visits.to(probabilities.dtype), probabilities.sum(dim=0)])
        visits, sums = _everywhere(own, group)
        tokens = visits.sum() / experts.shape[1]
        slope = num_experts * visits / visits.sum() / tokens
        loss = (slope * sums).sum()
    push = (slope * probabilities).sum()
    return loss + push - push.detach()


def nudge(bias, visits, rate, group):
    total = _everywhere(visits.to(torch.int64), group).double()
    mean = total.mean()
    new = bias.clone()
    new[total < mean] += rate
    new[total > mean] -= rate
    return new
