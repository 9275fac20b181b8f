"""The sizes first, then one split."""

from torch import Tensor


def split_micro_batches(batch: Tensor, num_micro_batches: int) -> list[Tensor]:
    samples = batch.size(0)
    if num_micro_batches < 1 or num_micro_batches > samples:
        raise ValueError(f"{num_micro_batches} micro-batches of {samples} samples")
    each, more = divmod(samples, num_micro_batches)
    sizes = [each + 1] * more + [each] * (num_micro_batches - more)
    return list(batch.split(sizes))
