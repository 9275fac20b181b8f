"""Keeps what a fork allocates away from what it shares with the process that it was forked from."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

_MOST = 256 << 20  # bytes that are taken at most: an allocator with an unusual heap must not be emptied


def fill_gaps() -> int:
    """Take the free blocks between this process's objects for good; returns how many bytes they were.

    Imports leave thousands. A fork that allocates in one of them has a page copied which it only shared, and
    the huge page around it cut into 512, which each later fork must copy and each exit undo, one by one.
    Without gaps it allocates in pages of its own, at the end of the heap. Takes about 10 ms. With an
    allocator that does not use the process's heap it does nothing.
    """
    libc = _libc()
    end = libc.sbrk(0)
    taken = 0
    for size in _sizes():
        while taken < _MOST:
            block = libc.malloc(size)
            if block is None or block >= end:  # no gap of this size is left
                libc.free(block)
                break
            taken += size
    return taken


def _sizes() -> Iterator[int]:
    """From below what malloc fetches from elsewhere down to its smallest, which it keeps by their size."""
    size = 100_000
    while size > 1040:
        yield size
        size = size * 3 // 4
    yield from range(1040, 23, -16)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    return libc
