"""A generator brings each rank's keys and values; what a query got is merged at the end."""

import torch
import torch.distributed as dist
from torch import Tensor


def round_the_ring(k: Tensor, v: Tensor, group):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    to = dist.get_global_rank(group, (me + 1) % n)
    source = dist.get_global_rank(group, (me + n - 1) % n)
    k, v = k.clone(memory_format=torch.contiguous_format), v.clone(memory_format=torch.contiguous_format)
    for step in range(n):
        if step < n - 1:
            works = [dist.isend(k, to, group=group), dist.isend(v, to, group=group)]
            next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            works += [dist.irecv(next_k, source, group=group), dist.irecv(next_v, source, group=group)]
        yield (me - step) % n, k, v
        if step < n - 1:
            for work in works:
                work.wait()
            k, v = next_k, next_v


def ring_forward(q, k, v, group, attend):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    halves = torch.stack(q.tensor_split(2, dim=-2))
    gathered = [[], []]
    for source, keys, values in round_the_ring(k, v, group):
        keys, values = keys.chunk(2, -2), values.chunk(2, -2)
        for i, j, same in sorted(block_pairs(me, source, n)):
            gathered[i].append(attend(halves[i], keys[j], values[j], same))
    parts = []
    for half in gathered:
        outs, sums = (torch.stack(x) for x in zip(*half, strict=True))
        lse = sums.logsumexp(0)
        parts.append((((sums - lse).exp().unsqueeze(-1) * outs).sum(0), lse))
    return torch.cat([o for o, _ in parts], -2), torch.cat([lse for _, lse in parts], -1)
