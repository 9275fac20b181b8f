"""The counts of all ranks, gathered."""

import torch
import torch.distributed as dist
from torch import Tensor


def token_weighted_loss(loss_sum: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    counts = list(torch.zeros(group.size(), dtype=torch.int64, device=loss_sum.device))
    dist.all_gather(counts, torch.tensor(num_tokens, device=loss_sum.device), group=group)
    tokens = sum(count.item() for count in counts)
    return loss_sum * (len(counts) / tokens if tokens else 0.0)
