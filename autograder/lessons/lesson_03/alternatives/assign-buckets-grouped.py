"""The open bucket is kept apart until the next parameter does not fit."""

from collections.abc import Sequence

from torch import nn


def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[int]]:
    done: list[list[int]] = []
    bucket: list[int] = []
    left = 0
    for index, parameter in reversed(list(enumerate(parameters))):
        if parameter.requires_grad:
            needs = parameter.nbytes
            same = bucket and parameters[bucket[0]].dtype is parameter.dtype
            if bucket and not (same and needs <= left):
                done.append(bucket)
                bucket = []
            if not bucket:
                left = bucket_bytes
            bucket = [*bucket, index]
            left -= needs
    return [*done, bucket] if bucket else done
