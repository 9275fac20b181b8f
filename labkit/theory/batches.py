"""Batch arithmetic: micro-batch, gradient accumulation, data parallel, tokens."""

from __future__ import annotations

from collections.abc import Callable


def global_batch_size(micro_batch: int, accumulation_steps: int, data_parallel: int) -> int:
    """Sequences that go into one optimizer step: b x accumulation x d."""
    return micro_batch * accumulation_steps * data_parallel


def accumulation_steps(global_batch: int, micro_batch: int, data_parallel: int) -> int:
    """Micro-batches each data-parallel rank adds up; ValueError where the batch does not divide."""
    if min(global_batch, micro_batch, data_parallel) < 1:
        raise ValueError(
            f"global_batch, micro_batch and data_parallel must be 1 or more, got "
            f"{global_batch}, {micro_batch}, {data_parallel}"
        )
    per_step = micro_batch * data_parallel
    if global_batch % per_step:
        raise ValueError(
            f"a global batch of {global_batch} is not a multiple of micro_batch x data_parallel = "
            f"{micro_batch} x {data_parallel} = {per_step}"
        )
    return global_batch // per_step


def largest_that_fits(needs: Callable[[int], float], memory: float, limit: int = 1 << 20) -> int:
    """The largest n in 1..limit with needs(n) <= memory, 0 if there is none; needs must grow with n."""
    low, high = 0, 1
    while high <= limit and needs(high) <= memory:
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) <= memory else (low, middle)
    return low
