"""Tokens of a rank, then of a micro-batch."""


def global_batch_size(micro_batch: int, accumulation: int, data_parallel: int) -> int:
    each_rank = micro_batch * accumulation
    return data_parallel * each_rank


def accumulation_steps(tokens_per_step: int, sequence: int, micro_batch: int, data_parallel: int) -> int:
    count = tokens_per_step
    for size in (sequence, micro_batch, data_parallel):
        if count % size != 0:
            raise ValueError(f"{tokens_per_step} tokens: {count} do not divide by {size}")
        count //= size
    return count
