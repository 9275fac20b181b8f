"""Keys with values, and their gradients, stacked into one message each."""

import torch
import torch.distributed as dist
from torch import Tensor


class RingAttention(torch.autograd.Function):
    """The ring."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group) -> Tensor:
        ctx.group = group
        out, lse = ring_forward(q, k, v, group, attend_block)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        n, me = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        half = q.shape[-2] // 2
        delta = torch.einsum("...d,...d->...", grad_out, out)
        held = torch.stack((k, v))
        sums, dq = torch.zeros_like(held), torch.zeros_like(q)
        for step in range(n):
            coming, works = start_passing([held], ctx.group) if step + 1 < n else ([held], [])
            for i, j, same in block_pairs(me, (me - step) % n, n):
                r, c = slice(i * half, (i + 1) * half), slice(j * half, (j + 1) * half)
                given = q[..., r, :], held[0][..., c, :], held[1][..., c, :], grad_out[..., r, :]
                parts = block_backward(*given, lse[..., r], delta[..., r], same)
                dq[..., r, :] += parts[0]
                sums[..., c, :] += torch.stack(parts[1:])
            for work in works:
                work.wait()
            held = coming[0]
            if n > 1:
                arriving, works = start_passing([sums], ctx.group)
                for work in works:
                    work.wait()
                sums = arriving[0]
        return dq, sums[0], sums[1], None
