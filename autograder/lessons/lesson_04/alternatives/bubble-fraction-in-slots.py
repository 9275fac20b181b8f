"""Counted in slots of the thin stages: p - 1 of them are idle beside v m at work."""

import math


def bubble_over_ideal(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    idle, busy = num_ranks - 1, num_chunks * num_micro_batches
    return idle / busy


def bubble_fraction(schedule: str, num_ranks: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    idle, busy = num_ranks - 1, num_chunks * num_micro_batches
    return idle / (idle + busy)


def batch_seconds(
    schedule: str,
    num_ranks: int,
    num_micro_batches: int,
    forward: float,
    backward: float,
    num_chunks: int = 1,
) -> float:
    slot = (forward + backward) / num_chunks
    return (num_chunks * num_micro_batches + num_ranks - 1) * slot


def fewest_micro_batches(schedule: str, num_ranks: int, most_idle: float, num_chunks: int = 1) -> int:
    least = (num_ranks - 1) * (1 - most_idle) / (most_idle * num_chunks)
    step = num_ranks if schedule == "interleaved" else 1
    return max(step, step * math.ceil(least / step - 1e-9))
