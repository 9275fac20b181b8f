"""The shuffled order is made long enough first, then cut in strides."""

import math
import random


def shard_indices(num_samples: int, rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    if rank < 0 or rank >= world_size:
        raise ValueError(f"rank {rank} of {world_size}: there is none")
    order = list(range(num_samples))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    total = math.ceil(num_samples / world_size) * world_size
    while len(order) < total:
        order += order[: total - len(order)]
    return order[rank:total:world_size]
