"""Sums in float64, whatever the gradients are in, and behind each gradient how many ranks have one."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def _summed(parameter: nn.Parameter, group: dist.ProcessGroup) -> Tensor:
    own = torch.zeros(parameter.numel() + 1, dtype=torch.float64, device=parameter.device)
    if parameter.grad is not None:
        own[:-1] = parameter.grad.flatten()
        own[-1] = 1
    dist.all_reduce(own, group=group)
    return own[:-1].view_as(parameter) if own[-1] else torch.zeros_like(parameter)


def reduce_gradients(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> None:
    for parameter, group in [(p, everyone) for p in shared] + [(p, replicas) for p in experts]:
        mean = _summed(parameter, group) / everyone.size()
        parameter.grad = mean.to(parameter.dtype)
