"""Divided by the mean number of tokens of a rank."""

import torch
import torch.distributed as dist
from torch import Tensor


def token_weighted_loss(loss_sum: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    share = torch.full((), num_tokens / dist.get_world_size(group), dtype=torch.float64)
    dist.all_reduce(share, group=group)
    return loss_sum / share if share > 0 else loss_sum
