"""All four messages of a step in one `batch_isend_irecv`; buffers by turns."""

import torch
import torch.distributed as dist


def ring_forward(q, k, v, group, attend):
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    members = dist.get_process_group_ranks(group)
    after, before = members[(rank + 1) % ranks], members[rank - 1]
    here = [k.contiguous(), v.contiguous()]
    there = [torch.empty_like(t) for t in here]
    spare = [torch.empty_like(t) for t in here]
    c = q.shape[-2] // 2
    outs = [torch.zeros_like(q[..., :c, :]) for _ in range(2)]
    sums = [torch.full_like(q[..., :c, 0], float("-inf")) for _ in range(2)]
    for step in range(ranks):
        last = step == ranks - 1
        works = []
        if not last:
            sends = [dist.P2POp(dist.isend, t, after, group) for t in here]
            works = dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, t, before, group) for t in there])
        source = (rank - step) % ranks
        for half, other, same in block_pairs(rank, source, ranks):
            mine, theirs = slice(half * c, half * c + c), slice(other * c, other * c + c)
            part = attend(q[..., mine, :], here[0][..., theirs, :], here[1][..., theirs, :], same)
            outs[half], sums[half] = merge(outs[half], sums[half], *part)
        for work in works:
            work.wait()
        if not last:
            # What was sent may be written over now: it has left.
            here, there = there, (spare if step == 0 else here)
    return torch.cat(outs, dim=-2), torch.cat(sums, dim=-1)
