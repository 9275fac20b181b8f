"""What ranks print, read from their logs as it comes."""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from pathlib import Path

from labkit.launch.handover.request import log_path

_KEEP = 512 << 10  # bytes kept of the beginning, and again of the end, of each rank's output
_MOST_AT_ONCE = 4 << 20
_REMARK = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*\n")  # torch 2.8's, of each group
_READS = 3  # enough for its beginning and its end, also of a rank that prints without a pause


class Outputs:
    """The output of all ranks of a job. Keeps the first and the last half mebibyte of each."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self._logs = [_Log(log_path(directory, rank)) for rank in range(ranks)]

    def read(self) -> None:
        """Take in what the ranks have printed since the last time."""
        for log in self._logs:
            for _ in range(_READS):
                if not log.read():
                    break

    def texts(self) -> list[str]:
        """The output of each rank so far."""
        return [log.text() for log in self._logs]

    def since(self, positions: list[int]) -> list[str]:
        """What each rank has printed after the byte positions, which are moved forward."""
        found = [log.text(start) for log, start in zip(self._logs, positions, strict=True)]
        positions[:] = self.positions()
        return found

    def positions(self) -> list[int]:
        """How many bytes of whole characters each rank has printed so far."""
        return [log.size - log.begun() for log in self._logs]

    def close(self) -> None:
        for log in self._logs:
            log.close()


class _Log:
    """One rank's log. Only its first and last `_KEEP` bytes are held, however much there is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._head = bytearray()
        self._tail = bytearray()
        self._tail_start = 0
        self.size = 0

    def read(self) -> bool:
        """Whether there was more. Nothing is, where there is no log yet, or its disk is gone or stale."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            available = os.fstat(self._descriptor).st_size
            if available <= self.size:
                return False
            begin = max(self.size, available - _MOST_AT_ONCE) if len(self._head) >= _KEEP else self.size
            self._add(begin, os.pread(self._descriptor, _MOST_AT_ONCE, begin))
        except OSError:
            return False
        return True

    def _add(self, begin: int, data: bytes) -> None:
        taken = min(len(data), _KEEP - len(self._head)) if begin == len(self._head) else 0
        self._head += data[:taken]
        rest = data[taken:]
        if rest:
            if begin + taken != self._tail_start + len(self._tail):
                self._tail.clear()
            if not self._tail:
                self._tail_start = begin + taken
            self._tail += rest
            surplus = max(0, len(self._tail) - _KEEP)
            del self._tail[:surplus]
            self._tail_start += surplus
        self.size = begin + len(data)

    def text(self, start: int = 0) -> str:
        """What was printed from byte `start` on; what is not held any more is said to be left out.

        A character of which there is more to come is left for the next time.
        """
        return _REMARK.sub("", self._text(start))

    def begun(self) -> int:
        """How many bytes at the end belong to a character of which there is more to come."""
        if self._descriptor is None:
            return 0  # a closed log has no more
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(bytes((self._head[-3:] + self._tail[-3:])[-3:]))  # none is longer than four
        return len(decoder.getstate()[0])

    def _text(self, start: int) -> str:
        head = bytes(self._head[start:])
        tail = bytes(self._tail[max(0, start - self._tail_start) :])
        gap = self._tail_start - max(start, len(self._head)) if self._tail else 0
        if gap > 0:
            note = f"\n[... {gap} bytes of output left out: print less, or write to a file ...]\n"
            return head.decode(errors="replace") + note + _decoded(tail, self.begun())
        return _decoded(head + tail, self.begun())

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _decoded(data: bytes, begun: int) -> str:
    """Without the bytes of the character that is begun at its end."""
    return data[: len(data) - begun].decode(errors="replace")
