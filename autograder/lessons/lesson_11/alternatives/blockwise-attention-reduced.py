"""From the last block of keys to the first, folded with `merge`."""

from functools import reduce

import torch
from torch import Tensor


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    queries, keys, values = (t.split(block, dim=-2) for t in (q, k, v))

    def row(i: int) -> tuple[Tensor, Tensor]:
        parts = (attend_block(queries[i], keys[j], values[j], j == i) for j in reversed(range(i + 1)))
        return reduce(lambda a, b: merge(*a, *b), parts)

    outs, sums = zip(*map(row, range(len(queries))), strict=True)
    return torch.cat(outs, dim=-2), torch.cat(sums, dim=-1)
