"""Cuts by clip, for all parameters at once; numbers are numpy's."""

import numpy as np


def flat_layout(numels, world_size):
    if world_size < 1:
        raise ValueError(f"world_size {world_size}")
    ends = np.cumsum([0, *numels])
    size = -(-ends[-1] // world_size)
    pieces = []
    for rank in range(world_size):
        low = np.clip(rank * size, ends[:-1], ends[1:]) - ends[:-1]
        high = np.clip((rank + 1) * size, ends[:-1], ends[1:]) - ends[:-1]
        pieces.append([(i, a, b) for i, (a, b) in enumerate(zip(low, high, strict=True)) if a < b])
    return size, pieces
