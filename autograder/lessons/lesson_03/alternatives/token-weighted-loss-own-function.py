"""The counts of all ranks are gathered, and the weight is a function with a backward of its own."""

import torch
import torch.distributed as dist
from torch import Tensor


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return loss * weight

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad * ctx.weight, None


def token_weighted_loss(loss_sum: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    own = torch.tensor([num_tokens], dtype=torch.int64, device=loss_sum.device)
    counts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(counts, own, group=group)
    tokens = sum(int(count) for count in counts)
    return Weighted.apply(loss_sum, group.size() / tokens if tokens else 0.0)
