"""Messages as one batch of operations; what saw nothing is None until something was seen."""

import torch
import torch.distributed as dist
from torch import Tensor


def ring_forward(q: Tensor, k: Tensor, v: Tensor, group, attend) -> tuple[Tensor, Tensor]:
    n, me = group.size(), group.rank()
    members = dist.get_process_group_ranks(group)
    held, found = (k.contiguous(), v.contiguous()), [None, None]
    for step in range(n):
        requests, coming = [], None
        if step + 1 < n:
            coming = tuple(torch.empty_like(t) for t in held)
            operations = [dist.P2POp(dist.isend, t, members[(me + 1) % n], group) for t in held]
            operations += [dist.P2POp(dist.irecv, t, members[me - 1], group) for t in coming]
            requests = dist.batch_isend_irecv(operations)
        half = q.shape[-2] // 2
        for i, j, same in block_pairs(me, (me - step) % n, n):
            rows, keys = slice(i * half, (i + 1) * half), slice(j * half, (j + 1) * half)
            part = attend(q[..., rows, :], held[0][..., keys, :], held[1][..., keys, :], same)
            found[i] = part if found[i] is None else merge(*found[i], *part)
        for request in requests:
            request.wait()
        held = coming
    return torch.cat([part[0] for part in found], -2), torch.cat([part[1] for part in found], -1)
