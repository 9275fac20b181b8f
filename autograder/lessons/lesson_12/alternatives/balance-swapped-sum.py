"""The ranks' sum takes the place of this rank's own, with the gradient of its own."""

import torch
import torch.distributed as dist
from torch import Tensor


def everywhere(own: Tensor, group) -> Tensor:
    total = own.detach().clone()
    dist.all_reduce(total, group=group)
    return own + (total - own.detach())


def balance_loss(probabilities: Tensor, experts: Tensor, group) -> Tensor:
    n, num_experts = probabilities.shape
    hits = torch.nn.functional.one_hot(experts, num_experts).sum((0, 1)).to(probabilities)
    stacked = torch.cat([hits, probabilities.sum(0), hits.new_tensor([n])])
    stacked = everywhere(stacked, group)
    tokens = stacked[-1]
    f, p = stacked[:num_experts] / (tokens * experts.shape[1]), stacked[num_experts:-1] / tokens
    return num_experts * torch.dot(f, p)


def nudge(bias: Tensor, visits: Tensor, rate: float, group) -> Tensor:
    visits = everywhere(visits.to(torch.float64), group)
    return bias - rate * torch.sign(visits - visits.mean()).to(bias.dtype)
