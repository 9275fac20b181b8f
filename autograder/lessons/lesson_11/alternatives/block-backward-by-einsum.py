"""The same products as sums over letters, with the scale on the queries."""

import torch
from torch import Tensor


def block_backward(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, lse: Tensor, delta: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scale = q.shape[-1] ** -0.5
    p = torch.exp(torch.einsum("...id,...jd->...ij", q * scale, k) - lse[..., None])
    if diagonal:
        p = p.tril()
    ds = p * (torch.einsum("...id,...jd->...ij", grad_out, v) - delta[..., None])
    dq = scale * torch.einsum("...ij,...jd->...id", ds, k)
    dk = torch.einsum("...ij,...id->...jd", ds, q * scale)
    return dq, dk, torch.einsum("...ij,...id->...jd", p, grad_out)
