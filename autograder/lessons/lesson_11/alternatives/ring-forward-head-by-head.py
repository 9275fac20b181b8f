"""Blocks are asked for head by head, as plain matrices; two pieces of memory take turns for what comes."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Attend = Callable[..., tuple[Tensor, Tensor]]


def of_each_head(attend: Attend, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    heads = zip(*(t.flatten(0, -3) for t in (q, k, v)), strict=True)
    outs, lses = zip(*(attend(*one, diagonal) for one in heads), strict=True)
    return torch.stack(outs).view(q.shape), torch.stack(lses).view(q.shape[:-1])


def ring_forward(
    q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup, attend: Attend
) -> tuple[Tensor, Tensor]:
    me, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (dist.get_global_rank(group, (me + step) % n) for step in (1, -1))
    half = q.shape[-2] // 2
    queries = {i: q.narrow(-2, i * half, half) for i in (0, 1)}
    best = {i: (torch.zeros_like(x), torch.full_like(x[..., 0], -torch.inf)) for i, x in queries.items()}
    here = [t.clone(memory_format=torch.contiguous_format) for t in (k, v)]
    there = [torch.empty_like(t) for t in here]
    for step in range(n):
        works = []
        if step < n - 1:
            works += [dist.isend(t, right, group=group) for t in here]
            works += [dist.irecv(t, left, group=group) for t in there]
        for mine, theirs, same in block_pairs(me, (me - step) % n, n):
            keys, values = (t.narrow(-2, theirs * half, half) for t in here)
            best[mine] = merge(*best[mine], *of_each_head(attend, queries[mine], keys, values, same))
        for work in works:
            work.wait()
        here, there = there, here
    return torch.cat([best[0][0], best[1][0]], -2), torch.cat([best[0][1], best[1][1]], -1)
