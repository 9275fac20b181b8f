"""The tokens are counted as integers, and the weight of this rank's mean is applied last."""

import torch
import torch.distributed as dist
from torch import Tensor


def token_weighted_loss(loss_sum: Tensor, num_tokens: int, group: dist.ProcessGroup) -> Tensor:
    everyone = torch.tensor([num_tokens], dtype=torch.int64, device=loss_sum.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.SUM, group=group)
    tokens = max(int(everyone), 1)
    return loss_sum * (group.size() / tokens)
