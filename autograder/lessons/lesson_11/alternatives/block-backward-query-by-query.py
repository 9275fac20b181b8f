"""One query at a time, with the keys it sees, in float64."""

import torch
from torch import Tensor


def block_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, lse: Tensor, delta: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    kind = q.dtype
    q, k, v, grad_out, lse, delta = (t.double() for t in (q, k, v, grad_out, lse, delta))
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i in range(q.shape[-2]):
        seen = i + 1 if diagonal else k.shape[-2]
        keys, values = k[..., :seen, :], v[..., :seen, :]
        query, grad = q[..., i, None, :], grad_out[..., i, None, :]
        p = ((query * keys).sum(-1) * scale - lse[..., i, None]).exp()
        ds = p * ((grad * values).sum(-1) - delta[..., i, None]) * scale
        dv[..., :seen, :] += p[..., None] * grad
        dk[..., :seen, :] += ds[..., None] * query
        dq[..., i, :] = (ds[..., None] * keys).sum(-2)
    return dq.to(kind), dk.to(kind), dv.to(kind)
