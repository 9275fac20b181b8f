"""What a rank prints: into its log, and out of the buffers."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

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
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )


def flush_output() -> None:
    """Write what was printed; OSError when the disk has no room for it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def flush_what_fits() -> None:
    """`flush_output` after a failure: neither a full disk nor what the code made of its streams hides why."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
