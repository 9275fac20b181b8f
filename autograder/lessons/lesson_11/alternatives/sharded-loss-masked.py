"""A loss for every token, zero where none counts; two reductions, the second of whole numbers."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def sharded_loss(logits: Tensor, targets: Tensor, group: dist.ProcessGroup, ignore: int = -100) -> Tensor:
    kind = torch.promote_types(logits.dtype, torch.float32)
    keep = targets.ne(ignore)
    log_probabilities = F.log_softmax(logits, dim=-1, dtype=kind)
    chosen = log_probabilities.gather(-1, targets.where(keep, 0)[..., None])[..., 0]
    own = -(chosen * keep).sum()
    number = keep.sum()
    works = [dist.all_reduce(number, group=group, async_op=True)]
    total = own.detach().clone()
    works.append(dist.all_reduce(total, group=group, async_op=True))
    for work in works:
        work.wait()
    if number == 0:
        return own * 0
    mean = own / number
    return mean - mean.detach() + total / number
