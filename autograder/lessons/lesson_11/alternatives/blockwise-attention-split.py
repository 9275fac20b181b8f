"""Tensors are split once, and each row of blocks is reduced with merge."""

from functools import reduce

import torch
from torch import Tensor


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    queries, keys, values = (t.split(block, dim=-2) for t in (q, k, v))

    def row(i: int) -> tuple[Tensor, Tensor]:
        parts = (attend_block(queries[i], keys[j], values[j], i == j) for j in range(i + 1))
        return reduce(lambda one, other: merge(*one, *other), parts)

    outs, lses = zip(*map(row, range(len(queries))), strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)
