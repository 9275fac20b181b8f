"""The first rank alone counts the replicated ones; the padding is left as it is."""

import itertools

import torch
import torch.distributed as dist
from torch import Tensor


def clip_grad_norm(shards, owned, replicated, max_norm: float, group: dist.ProcessGroup) -> Tensor:
    own = [p.grad.detach()[:n] for p, n in zip(shards, owned, strict=True) if p.grad is not None]
    shared = [p.grad.detach() for p in replicated if p.grad is not None]
    devices = {p.device for p in itertools.chain(shards, replicated)}
    total = torch.zeros((), dtype=torch.float64, device=devices.pop() if devices else None)
    for gradient in itertools.chain(own, shared if group.rank() == 0 else ()):
        flat = gradient.double().flatten()
        total = total + torch.dot(flat, flat)
    dist.all_reduce(total, group=group, async_op=True).wait()
    norm = total.sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0).item()
    for gradient in itertools.chain(own, shared):
        gradient.mul_(factor)
    return norm
