"""Blocks beside each other are handed in as one: both halves of the queries, or both of the keys."""

import torch
import torch.distributed as dist


def ring_forward(q, k, v, group, attend):
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    early, late = q.chunk(2, dim=-2)
    c = early.shape[-2]
    for step in range(ranks):
        coming, works = start_passing([k, v], group) if step < ranks - 1 else ([k, v], [])
        front, front_v = k[..., :c, :], v[..., :c, :]
        if step == 0:
            first = attend(early, front, front_v, True)
            second = merge(
                *attend(late, front, front_v, False), *attend(late, k[..., c:, :], v[..., c:, :], True)
            )
            out, lse = torch.cat((first[0], second[0]), -2), torch.cat((first[1], second[1]), -1)
        elif step <= rank:
            out, lse = merge(out, lse, *attend(q, front, front_v, False))
        else:
            more, more_lse = merge(out[..., c:, :], lse[..., c:], *attend(late, k, v, False))
            out, lse = torch.cat((out[..., :c, :], more), -2), torch.cat((lse[..., :c], more_lse), -1)
        for work in works:
            work.wait()
        k, v = coming
    return out, lse
