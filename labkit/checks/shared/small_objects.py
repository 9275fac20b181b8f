"""Bytes of Python's small objects, which lie in memory that Python has set aside: no C library knows of
them, so that a list of short `bytes` can hold a model and nobody sees it there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator

STDERR = 2  # where Python writes its statistics, in C
MOST_TEXT = 2**16  # bytes: what a pipe holds, and many times what they are
_ALLOCATED = re.compile(rb"# bytes in allocated blocks\s*=\s*([\d,]+)")


def bytes_of_small_objects() -> int:
    """Bytes of all objects of up to 512 bytes, as Python's allocator counts them; none where objects are the
    C library's. (tracemalloc would tell those of a stretch, but can crash where a backend's threads run.)
    """
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)  # whoever else writes meanwhile must not wait for us
        with _instead_of_stderr(write):
            sys._debugmallocstats()
        found = _ALLOCATED.search(os.read(read, MOST_TEXT))
    finally:
        os.close(read)
        os.close(write)
    return int(found[1].replace(b",", b"")) if found else 0


@contextlib.contextmanager
def _instead_of_stderr(file: int) -> Iterator[None]:
    kept = os.dup(STDERR)
    os.dup2(file, STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
