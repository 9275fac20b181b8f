"""Scatter and gather in loops of their own; the receive is posted first, and parts may be empty."""

import torch
import torch.distributed as dist


def ring_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    me, n = dist.get_rank(group), dist.get_world_size(group)
    work = x.reshape(-1).clone()
    bounds = [round(i * work.numel() / n) for i in range(n + 1)]
    part = [work[bounds[i] : bounds[i + 1]] for i in range(n)]

    def exchange(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        receiving = dist.irecv(incoming, group=group, group_src=(me - 1) % n)
        dist.send(outgoing, group=group, group_dst=(me + 1) % n)
        receiving.wait()

    for step in range(n - 1):
        mine, theirs = (me - step) % n, (me - step - 1) % n
        arrived = torch.empty_like(part[theirs])
        exchange(part[mine], arrived)
        part[theirs].add_(arrived)
    for step in range(n - 1):
        exchange(part[(me + 1 - step) % n], part[(me - step) % n])
    x.copy_(work.view(x.shape))
