"""Warm-up and one more, or all there are."""


def peak_in_flight(schedule, rank, num_ranks, num_micro_batches, num_chunks=1):
    everything = num_micro_batches * num_chunks
    warm_up = {
        "gpipe": everything,
        "1f1b": num_ranks - 1 - rank,
        "interleaved": 2 * (num_ranks - 1 - rank) + num_ranks * (num_chunks - 1),
    }[schedule]
    return everything if warm_up >= everything else warm_up + 1
