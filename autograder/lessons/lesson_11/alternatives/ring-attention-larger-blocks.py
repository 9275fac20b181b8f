"""Blocks as large as a step allows, sums of exponentials under a running maximum, messages in other order."""


def _pieces(rank: int, source: int, c: int):
    """(queries, keys, same tokens) as slices: one block where the source is another rank, else three."""
    half = c // 2
    whole, front, back = slice(0, c), slice(0, half), slice(half, c)
    if source < rank:
        return [(whole, front, False)]
    if source > rank:
        return [(back, whole, False)]
    return [(back, front, False), (front, front, True), (back, back, True)]


def _start(rank, n, group, *tensors):
    there = dist.get_global_rank(group, (rank + 1) % n)
    here = dist.get_global_rank(group, (rank + n - 1) % n)
    handles, fresh = [], []
    for t in tensors:
        handles.append(dist.isend(t, there, group))
        fresh.append(torch.empty_like(t))
        handles.append(dist.irecv(fresh[-1], here, group))
    return handles, fresh


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        d = q.shape[-1]
        top = torch.full_like(q[..., :1], -math.inf)
        bottom, above = torch.zeros_like(top), torch.zeros_like(q, memory_format=torch.contiguous_format)
        keys, values = k.contiguous(), v.contiguous()
        for step in range(n):
            if step < n - 1:
                handles, fresh = _start(rank, n, group, keys, values)
            for rows, columns, same in _pieces(rank, (rank - step) % n, q.shape[-2]):
                s = q[..., rows, :] @ keys[..., columns, :].mT * d**-0.5
                if same:
                    ahead = torch.arange(s.shape[-1], device=s.device)
                    s = torch.where(ahead[None, :] > ahead[:, None], -math.inf, s)
                highest = torch.maximum(top[..., rows, :], s.amax(-1, keepdim=True))
                shrink, e = (top[..., rows, :] - highest).exp(), (s - highest).exp()
                bottom[..., rows, :] = bottom[..., rows, :] * shrink + e.sum(-1, keepdim=True)
                above[..., rows, :] = above[..., rows, :] * shrink + e @ values[..., columns, :]
                top[..., rows, :] = highest
            if step < n - 1:
                for handle in reversed(handles):
                    handle.wait()
                keys, values = fresh
        out = above / bottom
        ctx.rank, ctx.n, ctx.group = rank, n, group
        ctx.save_for_backward(q, k, v, out, (top + bottom.log()).squeeze(-1))
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        rank, n, group = ctx.rank, ctx.n, ctx.group
        delta = (grad_out * out).sum(dim=-1)
        dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        held = [t.contiguous() for t in (k, v)]
        sums = [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in (k, v)]
        for step in range(n):
            last = step == n - 1
            if not last:
                handles, fresh = _start(rank, n, group, *held)
            for rows, columns, same in _pieces(rank, (rank - step) % n, q.shape[-2]):
                a, b, c = block_backward(
                    q[..., rows, :],
                    held[0][..., columns, :],
                    held[1][..., columns, :],
                    grad_out[..., rows, :],
                    lse[..., rows],
                    delta[..., rows],
                    same,
                )
                dq[..., rows, :] += a
                sums[0][..., columns, :] += b
                sums[1][..., columns, :] += c
            if n > 1:
                waiting, sums = _start(rank, n, group, *sums)
                if not last:
                    waiting, held = handles + waiting, fresh
                for handle in waiting:
                    handle.wait()
        return dq, *sums, None
