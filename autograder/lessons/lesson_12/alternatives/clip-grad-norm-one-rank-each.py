"""Everything is counted by one rank: experts by the first of their replicas, the rest by the first of all."""

import torch
import torch.distributed as dist
from torch import Tensor


def gradients(parameters) -> list[Tensor]:
    return [p.grad.detach() for p in parameters if p.grad is not None]


def clip_grad_norm(
    shared, experts, max_norm: float, everyone: dist.ProcessGroup, replicas: dist.ProcessGroup
) -> Tensor:
    counted = gradients(shared) if everyone.rank() == 0 else []
    counted += gradients(experts) if replicas.rank() == 0 else []
    device = next((p.device for p in [*shared, *experts]), torch.device("cpu"))
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for gradient in counted:
        wide = gradient.to(torch.float64)
        total += torch.tensordot(wide, wide, dims=wide.dim())
    dist.all_reduce(total, group=everyone)
    norm = total.sqrt().squeeze()
    scale = max_norm / norm.item() if norm.item() > max_norm else None
    for p in (*shared, *experts) if scale is not None else ():
        if p.grad is not None:
            p.grad = p.grad * scale
    return norm
