"""What ranks print, kept up to a bound: answers are written to the same file system in memory, and a rank
that prints much must not leave them without room.

A rank prints into a pipe. Who reads it is out of the rank's reach where each rank has a place of its own: the
process that looks after it. Elsewhere it is a process that all ranks of a job have in common.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from select import POLLIN, poll
from typing import NoReturn

KEPT = 256 * 1024  # bytes, of the beginning: for whoever looks into a job, as nothing of it is graded
_AT_ONCE = 64 * 1024  # bytes: what a pipe holds
_PATIENCE = 2.0  # seconds for what is left in the pipe when the ranks have ended
_DROPPED = f"\n[more than {KEPT // 1024} KiB were printed: the rest was dropped]\n".encode()


class Output:
    """What comes out of a pipe. Its first `KEPT` bytes go to `log`; the rest is read, or whoever prints would
    wait for ever, and dropped, which the end of `log` says.
    """

    def __init__(self, pipe: int, log: Path) -> None:
        self._pipe, self._left = pipe, KEPT
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self) -> bool:
        """Wait for more, and take it; False when nobody can print any more."""
        data = os.read(self._pipe, _AT_ONCE)
        if data and self._left >= 0:
            with contextlib.suppress(OSError):  # no room for the log: ranks go on all the same
                os.write(self._log, data[: self._left] + (_DROPPED if len(data) > self._left else b""))
            self._left -= len(data)
        return bool(data)

    def read_all(self) -> None:
        """Take all that comes, until nobody can print any more."""
        while self.read():
            pass

    def read_until(self, heard: int) -> None:
        """Take what comes until something can be read from another descriptor, or nobody can print."""
        both = poll()
        both.register(heard, POLLIN)
        both.register(self._pipe, POLLIN)
        while heard not in {number for number, _ in both.poll()}:
            if not self.read():
                return  # whoever waits for the other descriptor now waits for that alone


@contextlib.contextmanager
def kept_together(log: Path) -> Iterator[list[int]]:
    """Meanwhile ranks that this process's children start print into one pipe, which another child reads: the
    one that is given, which must outlive them. When this is left it has read what there was, and is gone.
    """
    from labkit.launch.handover.request import OUTPUT

    reading, writing = os.pipe()
    reader = os.fork()
    if reader == 0:
        _be_the_reader(reading, log)
    os.close(reading)
    os.environ[OUTPUT] = str(writing)
    try:
        yield [reader]
    finally:
        del os.environ[OUTPUT]
        os.close(writing)
        _reap(reader)


def _reap(reader: int) -> None:
    """When it has read to the end, or _PATIENCE is over: a process that got away may still hold the pipe."""
    until = time.monotonic() + _PATIENCE
    while os.waitpid(reader, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(reader, signal.SIGKILL)
        time.sleep(0.003)


def _be_the_reader(pipe: int, log: Path) -> NoReturn:
    try:
        os.dup2(pipe, 0)
        os.closerange(3, 65536)  # the pipe's other end too
        Output(0, log).read_all()
    finally:
        os._exit(0)
