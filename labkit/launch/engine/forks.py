"""A process that a rank's code forks has no part in what the rank says: where that code ends, it leaves."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from typing import NoReturn

from labkit.launch.engine.streams import flush_what_fits

_PATIENCE = 0.2  # seconds a forked process gets to come to its end, so that what it says there is seen


@contextlib.contextmanager
def forks_end_here() -> Iterator[None]:
    """Around code of somebody else's: a process that it forks and that comes to the end of the block leaves
    there, and says so. Else it would answer, write and communicate as the rank that it is a copy of.
    """
    own = os.getpid()
    failed: BaseException | None = None
    with _pipe() as pipe:
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            if os.getpid() != own:
                _leave(failed)
            _await_forks(pipe)


@contextlib.contextmanager
def _pipe() -> Iterator[list[int]]:
    """An end to read from, and one that forked processes have open too; nothing where there can be none."""
    ends: list[int] = []
    with contextlib.suppress(OSError):
        ends += os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            _close(end)


def _await_forks(pipe: list[int]) -> None:
    """Wait a moment for the processes that were forked since there is the pipe, if there are any."""
    if pipe:
        _close(pipe.pop())
        with contextlib.suppress(OSError, ValueError):  # code may close what it did not open
            select.select(pipe, [], [], _PATIENCE)  # nobody writes: it can be read when nobody could any more


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _leave(error: BaseException | None) -> NoReturn:
    with contextlib.suppress(BaseException):
        flush_what_fits()
        after = "" if error is None else f" after {type(error).__name__}: {error}"
        told = f"labkit: process {os.getpid()}, which this code forked, came to its end{after}, and was ended"
        os.write(2, f"{told} there: leave such a process with os._exit(0)\n".encode(errors="replace"))
    os._exit(0 if error is None else 1)
