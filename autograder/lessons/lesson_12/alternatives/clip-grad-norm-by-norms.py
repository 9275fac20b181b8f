"""Norms of the parameters, as torch's own does it, in float32."""

import torch
import torch.distributed as dist


def norm_of(parameters):
    norms = [p.grad.float().norm() for p in parameters if p.grad is not None]
    return torch.stack(norms).norm() if norms else torch.zeros(())


def clip_grad_norm(shared, experts, max_norm, everyone, replicas):
    common, own = norm_of(shared), norm_of(experts).square()
    own = own / dist.get_world_size(replicas)
    if dist.get_world_size(everyone) > 1:
        dist.all_reduce(own, group=everyone)
    norm = torch.sqrt(common.square() + own)
    if norm.item() <= max_norm:
        return norm
    for parameter in [*shared, *experts]:
        if parameter.grad is not None:
            parameter.grad = parameter.grad * (max_norm / norm)
    return norm
