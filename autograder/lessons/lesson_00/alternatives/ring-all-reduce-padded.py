"""Parts of equal size: the tensor is filled up with zeros until it divides."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def ring_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    world = group.size()
    if world == 1:
        return
    me = group.rank()
    rows = F.pad(x.flatten(), (0, -x.numel() % world)).view(world, -1).clone()
    spare = torch.empty_like(rows[0])
    for step in range(2 * world - 2):
        send = rows[(me - step) % world]
        target = rows[(me - step - 1) % world]
        reducing = step + 1 < world
        requests = [
            dist.isend(send, group=group, group_dst=(me + 1) % world),
            dist.irecv(spare if reducing else target, group=group, group_src=(me - 1) % world),
        ]
        for request in requests:
            request.wait()
        if reducing:
            torch.add(target, spare, out=target)
    x.copy_(rows.flatten()[: x.numel()].view_as(x))
