"""What one device's memory holds: bytes taken and given back, peaks, and the refusal when it is full."""

from __future__ import annotations

import torch

BLOCK = 512
"""Bytes: an allocation takes a whole number of these, as in torch's CUDA caching allocator
(c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def rounded(num_bytes: int) -> int:
    """The bytes an allocation of `num_bytes` takes from a device."""
    return -(-num_bytes // BLOCK) * BLOCK


class Ledger:
    """The memory of one device. All amounts are bytes.

    peak: what torch tells, since whoever asked torch to begin anew. most: since `restart`, whatever torch was
    asked meanwhile.
    """

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.capacity = capacity
        self.allocated = self.peak = self.most = 0

    @property
    def free(self) -> int:
        """Bytes that can still be taken."""
        return self.capacity - self.allocated

    def require(self, num_bytes: int) -> None:
        """Raise torch.OutOfMemoryError unless `num_bytes` more would fit."""
        if rounded(num_bytes) > self.free:
            raise torch.OutOfMemoryError(self._refusal(num_bytes))

    def take(self, num_bytes: int) -> None:
        """Count an allocation."""
        self.require(num_bytes)
        self.allocated += rounded(num_bytes)
        self.peak, self.most = max(self.peak, self.allocated), max(self.most, self.allocated)

    def give_back(self, num_bytes: int) -> None:
        """Count the end of an allocation of `num_bytes`."""
        self.allocated -= rounded(num_bytes)

    def reset_peak(self) -> None:
        """From now on, the peak that torch tells is that of what follows."""
        self.peak = self.allocated

    def restart(self) -> None:
        """From now on, both peaks are those of what follows."""
        self.peak = self.most = self.allocated

    def _refusal(self, num_bytes: int) -> str:
        return (
            f"CUDA out of memory. Tried to allocate {readable(rounded(num_bytes))}. GPU {self.index} has a "
            f"total capacity of {readable(self.capacity)} of which {readable(self.free)} is free. "
            f"Of the allocated memory {readable(self.allocated)} is allocated by PyTorch, "
            "and 0 bytes is reserved by PyTorch but unallocated. (This is a stand-in device "
            "of labkit.devices: its size is the bytes_each it was given.)"
        )


def readable(num_bytes: int) -> str:
    """Bytes in the largest binary unit that leaves a whole part, as CUDA's own messages do."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} bytes"
