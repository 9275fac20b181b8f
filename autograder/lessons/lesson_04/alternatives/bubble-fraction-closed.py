"""Times in units of what one micro-batch takes on a rank; the fewest micro-batches are solved for."""

import math


def _waits(schedule, num_ranks, num_chunks):
    return (num_ranks - 1) / (num_chunks if schedule == "interleaved" else 1)


def bubble_over_ideal(schedule, num_ranks, num_micro_batches, num_chunks=1):
    return _waits(schedule, num_ranks, num_chunks) / num_micro_batches


def bubble_fraction(schedule, num_ranks, num_micro_batches, num_chunks=1):
    idle = _waits(schedule, num_ranks, num_chunks)
    return idle / (idle + num_micro_batches)


def batch_seconds(schedule, num_ranks, num_micro_batches, forward, backward, num_chunks=1):
    return (num_micro_batches + _waits(schedule, num_ranks, num_chunks)) * (forward + backward)


def fewest_micro_batches(schedule, num_ranks, most_idle, num_chunks=1):
    idle = _waits(schedule, num_ranks, num_chunks)
    step = num_ranks if schedule == "interleaved" else 1
    exact = idle * (1 - most_idle) / most_idle / step
    return max(1, math.ceil(exact - 1e-9)) * step
