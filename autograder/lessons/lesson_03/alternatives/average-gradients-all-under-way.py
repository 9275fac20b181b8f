"""All all-reduces are started before the first is waited for; 16-bit gradients are summed in float32."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def flat_copies(parameters: list[nn.Parameter]) -> Iterator[Tensor]:
    """Each gradient's numbers, row by row, in memory of their own."""
    for p in parameters:
        numbers = torch.zeros(p.shape, dtype=wide(p.dtype), device=p.device)
        yield (numbers if p.grad is None else numbers.copy_(p.grad.detach())).view(-1)


def average_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    asked = [p for p in module.parameters() if p.requires_grad]
    sums = list(flat_copies(asked))
    works = [dist.all_reduce(numbers, dist.ReduceOp.SUM, group, async_op=True) for numbers in sums]
    for p, numbers, work in zip(asked, sums, works, strict=True):
        work.wait()
        p.grad = (numbers / group.size()).to(p.dtype).view(p.shape)
