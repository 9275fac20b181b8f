"""What a rank prints: into its log, and out of the buffers."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO

from labkit.launch.handover.request import OUTPUT


def redirect_output(path: Path) -> None:
    """Send stdout and stderr, of Python and of compiled code alike, to the rank's log; or, where its
    environment names one, into a pipe that somebody else reads.
    """
    pipe = os.environ.pop(OUTPUT, "")
    log = int(pipe) if pipe else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _printing(1), _printing(2)


def _printing(number: int) -> IO[str]:
    return open(number, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)


def reopen_output(path: Path) -> None:
    """Have stdout and stderr lead to the log again where code has closed them, and say so there."""
    closed = [name for number, name in ((1, "stdout"), (2, "stderr")) if _reopened(number, name, path)]
    if closed:
        print(f"labkit: the code closed sys.{' and sys.'.join(closed)}; open again", file=sys.stderr)


def _reopened(number: int, name: str, path: Path) -> bool:
    """Whether it was closed. What code has put in its place, and works, stays."""
    stream = getattr(sys, name)
    gone, dead = not _is_open(number), stream is None or getattr(stream, "closed", False)
    if gone:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if log != number:
            os.dup2(log, number)
            os.close(log)
        os.set_inheritable(number, True)
    if dead:
        setattr(sys, name, _printing(number))
    return gone or dead


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def flush_output() -> None:
    """Write what was printed; OSError when the disk has no room for it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):  # as code may have left it
            stream.flush()


def flush_what_fits() -> None:
    """`flush_output` after a failure: neither a full disk nor what the code made of its streams hides why."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
