"""Norms of all gradients at once, squared; the factor is torch's, with its 1e-6."""

import torch
import torch.distributed as dist


def clip_grad_norm(cut, whole, max_norm, group):
    def squared(parameters):
        found = [p.grad.detach().float().norm() for p in parameters if p.grad is not None]
        return torch.stack(found).square().sum() if found else torch.zeros(())

    own = squared(cut)
    dist.all_reduce(own, group=group)
    norm = torch.sqrt(own + squared(whole))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in [*cut, *whole]:
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
    return norm
