"""Keys and values stacked into one message."""

import torch
import torch.distributed as dist
from torch import Tensor


def ring_forward(q: Tensor, k: Tensor, v: Tensor, group, attend) -> tuple[Tensor, Tensor]:
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    held = torch.stack((k, v))
    rows = q.chunk(2, dim=-2)
    outs = [torch.zeros_like(half) for half in rows]
    lses = [half.new_full(half.shape[:-1], float("-inf")) for half in rows]
    for source in [(rank - step) % ranks for step in range(ranks)]:
        last = source == (rank + 1) % ranks
        coming, works = (held, []) if last else start_passing([held], group)
        keys = held.chunk(2, dim=-2)
        for i, j, diagonal in block_pairs(rank, source, ranks):
            partial = attend(rows[i], keys[j][0], keys[j][1], diagonal)
            outs[i], lses[i] = merge(outs[i], lses[i], *partial)
        for work in works:
            work.wait()
        held = held if last else coming[0]
    return torch.cat(outs, -2), torch.cat(lses, -1)
