"""All calls are started first, and waited for afterwards. Where a rank is alone none is."""

import torch
import torch.distributed as dist


def reduce_gradients(shared, experts, everyone, replicas) -> None:
    share = 1.0 / dist.get_world_size(everyone)
    works = []
    pairs = [(p, everyone) for p in shared] + [(p, replicas) for p in experts]
    with torch.no_grad():
        for parameter, group in pairs:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(share)
            if dist.get_world_size(group) > 1:
                works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
        for work in works:
            work.wait()
