"""What a process holds from one moment to another, in whatever it is hidden."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
import torch.distributed as dist

from labkit.checks.shared.holding import bytes_of_names, objects, spelled_since
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.small_objects import bytes_of_small_objects
from labkit.record.live import bytes_of_process

REPEATS = 3  # the median of so many: what a backend or the allocator does meanwhile is no student's doing
SETTLES = 0.2  # seconds in which a backend's own threads let go of a collective's tensors
MOST_OBJECTS = 4000  # small ones of Python's, in memory of its own, that a call and its recording may leave
OBJECT_BYTES = 32  # of a float, with what Python needs beside it
Kept = TypeVar("Kept")
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def bytes_kept(prepare: Callable[[], Callable[[], Kept]], then: Callable[[Kept], None] | None = None) -> int:
    """Bytes that a call leaves behind as long as its result lives, with the result, whoever holds them.
    Autograd's hooks see what is saved in its own way; this sees attributes, closures and arrays as well. What
    a call reads out of tensors counts as kept, since there are more forms than one could look for.

    prepare: makes all that is new for a call, and returns the call. It is asked several times, as what runs
    for the first time imports and caches, and what an object keeps from one call hides what it keeps of the
    next. then: gets the result of each call once that is measured.
    """
    found = [_kept(prepare(), then) for _ in range(1 + REPEATS)][1:]
    return sorted(found)[REPEATS // 2]


def _kept(call: Callable[[], Kept], then: Callable[[Kept], None] | None) -> int:
    known, before = objects(), settled() - bytes_of_names()
    blocks = sys.getallocatedblocks()
    with numbers_given() as given:
        result = call()
    after, blocks = settled(), sys.getallocatedblocks() - blocks
    spelled = spelled_since(known)
    if then is not None:
        then(result)
    del result
    objects_kept = blocks * OBJECT_BYTES if blocks > MOST_OBJECTS else 0
    return after - before + spelled + objects_kept + given.kept_bytes


def bytes_left(call: Callable[[], Kept]) -> int:
    """Bytes of memory alone that a call leaves behind as long as its result lives; of numbers in small
    objects see `bytes_kept`.
    """
    before = settled() - bytes_of_names()
    result = call()
    after = settled()
    del result
    return after - before


def settled() -> int:
    """The least that is allocated in a fifth of a second; of a rank that is alone, which no backend's thread
    holds anything for, what is allocated now.
    """
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    over, least = time.monotonic() + (0.0 if alone else SETTLES), allocated()
    while time.monotonic() < over:
        time.sleep(SETTLES / 10)
        least = min(least, allocated())
    return least


def allocated() -> int:
    """Bytes that this process has of its C library and on its GPU now. Where the library does not tell: those
    of its tensors.
    """
    gc.collect()
    return allocated_now()


def allocated_now() -> int:
    """As `allocated`, with what Python has yet to collect: it takes no time."""
    library = _library()
    if library is None:
        return bytes_of_process()
    found = library.mallinfo2()
    on_gpu = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    return int(found.uordblks + found.hblkhd) + on_gpu


def weighed() -> int:
    """Bytes that this process has now: those `allocated`, and Python's small objects."""
    return allocated() + bytes_of_small_objects()


@cache
def _library() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Allocated
    return library
