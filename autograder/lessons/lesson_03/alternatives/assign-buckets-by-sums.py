"""Asks each time how many bytes the last bucket holds."""

from collections.abc import Sequence

from torch import nn


def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[int]]:
    def held(bucket: list[int]) -> int:
        return sum(parameters[i].numel() * parameters[i].element_size() for i in bucket)

    buckets: list[list[int]] = []
    trained = [i for i, p in enumerate(parameters) if p.requires_grad]
    while trained:
        i = trained.pop()
        fits = (
            len(buckets) > 0
            and parameters[buckets[-1][0]].dtype == parameters[i].dtype
            and held([*buckets[-1], i]) <= bucket_bytes
        )
        if fits:
            buckets[-1].append(i)
        else:
            buckets.append([i])
    return buckets
