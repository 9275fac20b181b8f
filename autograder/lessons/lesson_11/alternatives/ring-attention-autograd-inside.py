"""Whole pieces under a mask of positions; backward differentiates a sum whose gradient is the block's."""

import math

import torch
import torch.distributed as dist
from torch import Tensor


def pass_on(tensors: list[Tensor], group: dist.ProcessGroup) -> tuple[list[Tensor], list[dist.Work]]:
    rank, ranks = group.rank(), group.size()
    given = [t.contiguous() for t in tensors]
    got = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in given]
    works = [dist.isend(t, group=group, group_dst=(rank + 1) % ranks) for t in given]
    works += [dist.irecv(t, group=group, group_src=(rank - 1) % ranks) for t in got]
    return got, works


def scores_of(q: Tensor, k: Tensor, source: int, group: dist.ProcessGroup) -> Tensor:
    tokens, ranks = q.shape[-2] * group.size(), group.size()
    rows, columns = (
        torch.tensor(own_tokens(tokens, rank, ranks), device=q.device) for rank in (group.rank(), source)
    )
    scores = torch.einsum("...id,...jd->...ij", q, k) / math.sqrt(q.shape[-1])
    return torch.where(columns <= rows[:, None], scores, -math.inf)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        ranks, held = group.size(), [k, v]
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
        for step in range(ranks):
            got, works = pass_on(held, group) if step < ranks - 1 else ([], [])
            scores = scores_of(q, held[0], (group.rank() - step) % ranks, group)
            here = scores.logsumexp(-1)
            part = torch.softmax(scores, -1).nan_to_num() @ held[1]  # a row that sees nothing here
            out, lse = merge(out, lse, part, here)
            for work in works:
                work.wait()
            held = got
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        group, ranks = ctx.group, ctx.group.size()
        delta = (grad_out * out).sum(-1, keepdim=True)
        held, sums, dq = [k, v], [torch.zeros_like(k), torch.zeros_like(v)], torch.zeros_like(q)
        for step in range(ranks):
            got, works = pass_on(held, group) if step < ranks - 1 else ([], [])
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in (q, *held)]
                source = (group.rank() - step) % ranks
                weights = (scores_of(leaves[0], leaves[1], source, group) - lse.unsqueeze(-1)).exp()
                told = (weights @ leaves[2] * grad_out).sum() - (weights * delta).sum()
                parts = torch.autograd.grad(told, leaves)
            dq = dq + parts[0]
            sums = [a + b for a, b in zip(sums, parts[1:], strict=True)]
            if ranks > 1:
                sums, more = pass_on(sums, group)
                works = works + more
            for work in works:
                work.wait()
            held = got
        return dq, *sums, None
