"""All gradients of a kind in one flat tensor, and one call."""

import torch
import torch.distributed as dist


def reduce_gradients(shared, experts, everyone, replicas) -> None:
    size = dist.get_world_size(everyone)
    for owned, group in [(list(shared), everyone), (list(experts), replicas)]:
        if not owned:
            continue
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in owned]
        flat = torch.cat([g.reshape(-1) for g in gradients]) / size
        dist.all_reduce(flat, group=group)
        for p, part in zip(owned, flat.split([p.numel() for p in owned]), strict=True):
            p.grad = part.view_as(p).to(p.dtype, copy=True)
