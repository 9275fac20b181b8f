"""Messages by `batch_isend_irecv`; keys and values are passed on while their gradients are made."""

import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensors: list[Tensor], group):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    after, before = (dist.get_global_rank(group, (me + i) % n) for i in (1, n - 1))
    tensors = [t.contiguous() for t in tensors]
    fresh = [torch.empty_like(t) for t in tensors]
    ops = [dist.P2POp(dist.isend, t, after, group) for t in tensors]
    ops += [dist.P2POp(dist.irecv, t, before, group) for t in fresh]
    works = dist.batch_isend_irecv(ops)

    def arrived() -> list[Tensor]:
        for work in works:
            work.wait()
        return fresh

    return arrived, tensors


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        out, lse = ring_forward(q, k, v, group, attend_block)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        n, me = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        delta = torch.einsum("...cd,...cd->...c", out, grad_out)
        c = q.shape[-2] // 2
        where = [slice(0, c), slice(c, 2 * c)]
        dq = torch.zeros_like(q)
        sums = [torch.zeros_like(k), torch.zeros_like(v)]
        held = [k, v]
        for step in range(n):
            if step < n - 1:
                arrived, held = shift(held, ctx.group)
            for i, j, same in block_pairs(me, (me - step) % n, n):
                a, b = where[i], where[j]
                part = block_backward(
                    q[..., a, :],
                    held[0][..., b, :],
                    held[1][..., b, :],
                    grad_out[..., a, :],
                    lse[..., a],
                    delta[..., a],
                    same,
                )
                dq[..., a, :] += part[0]
                sums[0][..., b, :] += part[1]
                sums[1][..., b, :] += part[2]
            if n > 1:
                moved, _kept = shift(sums, ctx.group)
                sums = moved()
            if step < n - 1:
                held = arrived()
        return dq, sums[0], sums[1], None
