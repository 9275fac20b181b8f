"""An autograd function whose backward hands out each token's gradient; two reductions."""

import torch
import torch.distributed as dist
from torch import Tensor


class Balance(torch.autograd.Function):
    """The loss of everybody's tokens."""

    @staticmethod
    def forward(ctx, probabilities, experts, group):
        e = probabilities.shape[1]
        shares = torch.zeros(e + 1, dtype=torch.float64, device=probabilities.device)
        shares[:e] = torch.bincount(experts.flatten(), minlength=e)
        shares[e] = len(probabilities)
        dist.all_reduce(shares, group=group)
        shares = shares.to(probabilities.dtype)
        means = probabilities.sum(0)
        dist.all_reduce(means, group=group)
        slope = e * shares[:e] / shares[:e].sum() / shares[e]
        ctx.save_for_backward(slope)
        ctx.tokens = len(probabilities)
        return slope @ means

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return (grad * slope).expand(ctx.tokens, -1), None, None


def balance_loss(probabilities: Tensor, experts: Tensor, group) -> Tensor:
    return Balance.apply(probabilities, experts, group)


def nudge(bias: Tensor, visits: Tensor, rate: float, group) -> Tensor:
    everyones = visits.to(torch.int64, copy=True)
    dist.all_reduce(everyones, group=group)
    excess = everyones * len(everyones) - everyones.sum()
    return torch.where(excess > 0, bias - rate, torch.where(excess < 0, bias + rate, bias))
