"""Keys in the outer order of the sequence, beginning with a part that saw nothing."""

import torch
from torch import Tensor


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))
    blocks = [slice(start, min(start + block, q.shape[-2])) for start in range(0, q.shape[-2], block)]
    for number, keys in enumerate(blocks):
        for rows in blocks[number:]:
            part = attend_block(q[..., rows, :], k[..., keys, :], v[..., keys, :], rows == keys)
            out[..., rows, :], lse[..., rows] = merge(out[..., rows, :], lse[..., rows], *part)
    return out, lse
