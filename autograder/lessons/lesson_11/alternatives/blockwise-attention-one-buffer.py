"""One piece of memory for the scores of all pairs, each written over those before; merged as they come."""

import math

import torch
from torch import Tensor


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    *lead, sequence, size = q.shape
    q, k, v = (t.reshape(-1, sequence, size) for t in (q, k, v))
    heads, most = len(q), min(block, sequence)
    memory = q.new_empty(heads * most * most)
    out, lse = torch.empty_like(q), q.new_empty(heads, sequence)
    for begin in range(0, sequence, block):
        rows = slice(begin, min(begin + block, sequence))
        queries = q[:, rows]
        so_far, known = torch.zeros_like(queries), q.new_full(queries.shape[:2], -math.inf)
        for start in range(begin, -1, -block):
            columns = slice(start, min(start + block, sequence))
            shape = (heads, queries.shape[1], columns.stop - start)
            scores = memory[: math.prod(shape)].view(shape)
            torch.matmul(queries, k[:, columns].mT, out=scores)
            scores.mul_(size**-0.5)
            if start == begin:
                for i in range(shape[1] - 1):
                    scores[:, i, i + 1 :] = -math.inf
            here = scores.logsumexp(-1)
            scores.sub_(here.unsqueeze(-1)).exp_()
            so_far, known = merge(so_far, known, scores @ v[:, columns], here)
        out[:, rows], lse[:, rows] = so_far, known
    return out.view(*lead, sequence, size), lse.view(*lead, sequence)
