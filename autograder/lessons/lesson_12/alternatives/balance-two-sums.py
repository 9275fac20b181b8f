"""Visits and probabilities in two calls; a number with one value and another's gradient."""

import torch
import torch.distributed as dist
from torch import Tensor


def balance_loss(probabilities: Tensor, experts: Tensor, group: dist.ProcessGroup) -> Tensor:
    num_experts, k = probabilities.shape[1], experts.shape[1]
    visits = torch.bincount(experts.flatten(), minlength=num_experts)
    dist.all_reduce(visits, group=group)
    tokens = visits.sum() / k
    own = probabilities.sum(dim=0)
    whole = own.detach().clone()
    dist.all_reduce(whole, group=group)
    f = visits.to(own) / visits.sum()
    mean = (own + (whole - own).detach()) / tokens
    return num_experts * (f * mean).sum()


def nudge(bias: Tensor, visits: Tensor, rate: float, group: dist.ProcessGroup) -> Tensor:
    total = visits.to(torch.int64, copy=True)
    dist.all_reduce(total, group=group)
    missing = total.sum() - total * len(total)
    return bias + rate * missing.sign().to(bias.dtype)
