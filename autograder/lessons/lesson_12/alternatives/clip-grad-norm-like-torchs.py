"""All squares travel, in shares; divided as torch does it, with a little added to the norm."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def _squares(parameters: Sequence[nn.Parameter]) -> float:
    return sum(p.grad.double().pow(2).sum().item() for p in parameters if p.grad is not None)


def clip_grad_norm(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    max_norm: float,
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> Tensor:
    parameters = [*shared, *experts]
    own = _squares(shared) / everyone.size() + _squares(experts) / replicas.size()
    device = parameters[0].device if parameters else torch.device("cpu")
    total = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(total, group=everyone)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
    return norm
