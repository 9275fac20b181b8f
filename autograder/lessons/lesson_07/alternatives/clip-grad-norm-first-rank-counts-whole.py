"""The group's first rank adds the squares of the whole ones; gradients are replaced, not changed."""

import torch
import torch.distributed as dist
from torch import Tensor


def squares(parameters) -> Tensor:
    """The sum of the gradients' squares, in float64."""
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in parameters if p.grad is not None]
    return torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64)


def clip_grad_norm(cut, whole, max_norm: float, group: dist.ProcessGroup) -> Tensor:
    everything = [*cut, *whole]
    counted = everything if group.rank() == 0 else list(cut)
    total = squares(counted)
    if everything:
        total = total.to(everything[0].device)
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    if norm > max_norm:
        factor = max_norm / norm.item()
        for p in everything:
            if p.grad is not None:
                p.grad = p.grad.detach() * factor
    return norm
