"""A product by math.prod, and a division with its remainder."""

from math import prod


def global_batch_size(micro_batch: int, accumulation: int, data_parallel: int) -> int:
    return prod((micro_batch, accumulation, data_parallel))


def accumulation_steps(tokens_per_step: int, sequence: int, micro_batch: int, data_parallel: int) -> int:
    steps, left = divmod(tokens_per_step, global_batch_size(micro_batch, 1, data_parallel) * sequence)
    if left:
        raise ValueError(f"{left} of {tokens_per_step} tokens are left over")
    return steps
