"""Counts up, by the share of time at work."""

from itertools import count


def bubble_over_ideal(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    return batch_seconds(schedule, num_ranks, num_micro_batches, 0.5, 0.5, num_chunks) / num_micro_batches - 1


def bubble_fraction(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    return 1 - num_micro_batches / batch_seconds(
        schedule, num_ranks, num_micro_batches, 0.25, 0.75, num_chunks
    )


def batch_seconds(
    schedule: str,
    num_ranks: int,
    num_micro_batches: int,
    forward: float,
    backward: float,
    num_chunks: int = 1,
) -> float:
    slots = num_micro_batches * num_chunks + num_ranks - 1
    return slots * (forward / num_chunks + backward / num_chunks)


def fewest_micro_batches(schedule: str, num_ranks: int, most_idle: float, num_chunks: int = 1) -> int:
    step = {"interleaved": num_ranks}.get(schedule, 1)
    return next(
        m for m in count(step, step) if bubble_fraction(schedule, num_ranks, m, num_chunks) <= most_idle
    )
