"""Slices from ceil to ceil."""

from torch import Tensor


def split_micro_batches(batch: Tensor, num_micro_batches: int) -> list[Tensor]:
    if not 0 < num_micro_batches <= len(batch):
        raise ValueError("fewer samples than micro-batches, or no micro-batch")
    found, start = [], 0
    for left in range(num_micro_batches, 0, -1):
        stop = start + -(-(len(batch) - start) // left)
        found.append(batch[start:stop])
        start = stop
    return found
