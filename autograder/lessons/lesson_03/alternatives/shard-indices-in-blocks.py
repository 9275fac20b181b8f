"""Each rank reads a block of its own, one after the other, of NumPy's order."""

import numpy as np


def shard_indices(num_samples: int, rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    if rank not in range(world_size):
        raise ValueError(f"no rank {rank} among {world_size}")
    order = np.random.default_rng([seed, epoch]).permutation(num_samples)
    each = (num_samples + world_size - 1) // world_size
    positions = np.arange(rank * each, (rank + 1) * each)
    return [int(i) for i in order[positions % num_samples]]
