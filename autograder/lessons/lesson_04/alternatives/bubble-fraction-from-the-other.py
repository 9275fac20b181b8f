"""The ratio to working time from the share of all time."""


def bubble_fraction(schedule, num_ranks, num_micro_batches, num_chunks=1):
    return 1 - num_micro_batches / (num_micro_batches + (num_ranks - 1) / num_chunks)


def bubble_over_ideal(schedule, num_ranks, num_micro_batches, num_chunks=1):
    share = bubble_fraction(schedule, num_ranks, num_micro_batches, num_chunks)
    return share / (1 - share)


def batch_seconds(schedule, num_ranks, num_micro_batches, forward, backward, num_chunks=1):
    work = num_micro_batches * (forward + backward)
    return work / (1 - bubble_fraction(schedule, num_ranks, num_micro_batches, num_chunks))


def fewest_micro_batches(schedule, num_ranks, most_idle, num_chunks=1):
    found = step = num_ranks if schedule == "interleaved" else 1
    while bubble_fraction(schedule, num_ranks, found, num_chunks) - most_idle > 1e-9:
        found += step
    return found
