"""A rank that is alone calls nobody."""

import torch
import torch.distributed as dist


def clip_grad_norm(cut, whole, max_norm, group):
    def squares(parameters):
        found = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
        return sum(found, torch.zeros((), dtype=torch.float64))

    total = squares(cut)
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    norm = (total + squares(whole)).sqrt()
    if norm > max_norm:
        factor = (max_norm / norm).item()
        for parameter in [*cut, *whole]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad * factor
    return norm
