"""Each rank tells its share of everything: a part of what all have, and a part of its experts."""

import torch
import torch.distributed as dist


def clip_grad_norm(shared, experts, max_norm, everyone, replicas):
    total = torch.zeros(1, dtype=torch.float64)
    owners = [(p, dist.get_world_size(everyone)) for p in shared]
    owners += [(p, dist.get_world_size(replicas)) for p in experts]
    with_gradient = [(p.grad, copies) for p, copies in owners if p.grad is not None]
    for gradient, copies in with_gradient:
        total = total.to(gradient.device) + gradient.to(torch.float64).pow(2).sum() / copies
    dist.all_reduce(total, group=everyone)
    norm = total[0].sqrt()
    factor = min(1.0, max_norm / (norm.item() + 1e-6))
    for gradient, _ in with_gradient:
        gradient *= factor
    return norm
