"""Ranks are dealt to round by round from an endless order."""

import itertools
import random


def shard_indices(num_samples, rank, world_size, epoch, seed):
    if rank not in range(world_size):
        raise ValueError(f"rank {rank} is not one of {world_size}")
    order = list(range(num_samples))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    rounds = (num_samples + world_size - 1) // world_size
    dealt = itertools.islice(itertools.cycle(order), rounds * world_size)
    return [sample for position, sample in enumerate(dealt) if position % world_size == rank]
