"""Flat vectors; the product of each with itself."""

import torch
import torch.distributed as dist


def clip_grad_norm(shared, experts, max_norm, everyone, replicas):
    def grads(parameters):
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def squared(parameters):
        parts = [grad.flatten().to(torch.float64) for grad in grads(parameters)]
        flat = torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)
        return flat @ flat

    total = squared(experts) / dist.get_world_size(replicas)
    dist.all_reduce(total, group=everyone)  # what is shared is the same on every rank, and need not travel
    norm = (total + squared(shared)).sqrt()
    if norm > max_norm:
        for grad in grads([*shared, *experts]):
            grad.copy_(grad * (max_norm / norm))
    return norm
