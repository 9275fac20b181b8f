"""A step's own gradients are added to the sums when those have arrived: they are on their way meanwhile."""

import torch
import torch.distributed as dist
from torch import Tensor


class RingAttention(torch.autograd.Function):
    """The ring."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group) -> Tensor:
        out, lse = ring_forward(q, k, v, group, attend_block)
        ctx.ring = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        n, me = dist.get_world_size(ctx.ring), dist.get_rank(ctx.ring)
        cut = [t.chunk(2, -2) for t in (q, grad_out)] + [
            t.chunk(2, -1) for t in (lse, (grad_out * out).sum(-1))
        ]
        dq, held, sums, on_the_way = torch.zeros_like(q), [k, v], None, []
        for step in range(n):
            coming, works = start_passing(held, ctx.ring) if step < n - 1 else (None, [])
            mine = [torch.zeros_like(k), torch.zeros_like(v)]
            for i, j, same in block_pairs(me, (me - step) % n, n):
                rows, grads, lses, deltas = (part[i] for part in cut)
                keys, values = (t.chunk(2, -2)[j] for t in held)
                parts = block_backward(rows, keys, values, grads, lses, deltas, same)
                for total, part in zip(
                    (dq.chunk(2, -2)[i], *(t.chunk(2, -2)[j] for t in mine)), parts, strict=True
                ):
                    total += part
            for work in on_the_way:
                work.wait()
            sums = mine if sums is None else [a + b for a, b in zip(sums, mine, strict=True)]
            if n > 1:
                sent = sums
                sums, on_the_way = start_passing(sent, ctx.ring)
            for work in works:
                work.wait()
            held = coming
        for work in on_the_way:
            work.wait()
        return dq, *sums, None
