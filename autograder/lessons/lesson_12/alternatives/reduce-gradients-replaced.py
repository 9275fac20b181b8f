"""New tensors in place of the gradients; experts first."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def _total(parameter: nn.Parameter, group: dist.ProcessGroup) -> Tensor:
    grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    total = grad.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def reduce_gradients(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> None:
    losses = dist.get_world_size(everyone)
    for parameters, group in ((experts, replicas), (shared, everyone)):
        for parameter in parameters:
            parameter.grad = _total(parameter, group) / losses
