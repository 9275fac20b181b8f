"""Contenders that take turns: each a process of its own, warm, that works once for each line it reads."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from _common import Row, median, spread

Start = Callable[[], Iterator[Callable[[], object]]]
"""Starts what it needs, yields a function that does the thing once, and ends what it started."""


def serve(start: Start) -> None:
    """In a contender's process: do it once for each line on stdin, and answer with the seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with contextlib.redirect_stdout(io.StringIO()):
        contender = start()
        once = next(contender)
        once()
        answers.write("ready\n")
        answers.flush()
        for _ in sys.stdin:
            began = perf_counter()
            once()
            answers.write(f"{perf_counter() - began}\n")
            answers.flush()
        next(contender, None)


class Contender:
    """A contender's process. One that is not installed, or fails, has no times and a reason instead.

    The script that is running is started again with `--contender NAME`, and has to call `serve`.
    """

    def __init__(self, name: str) -> None:
        self.name, self.times, self.missing = name, list[float](), ""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(sys.argv[0]), "--contender", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._expect("ready")

    def round(self) -> None:
        if not self.missing:
            assert self._process.stdin is not None
            self._process.stdin.write("once\n")
            self._process.stdin.flush()
            self._expect("")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["?"])[-1][:80]
            self.missing = f"failed: {last}" if "ModuleNotFound" not in last else last.partition(": ")[2]
        elif line != word:
            self.times.append(float(line))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def race(names: Sequence[str], rounds: int) -> dict[str, Contender]:
    """Run the contenders in turn, `rounds` times each."""
    contenders = {name: Contender(name) for name in names}
    for _ in range(rounds):
        for contender in contenders.values():
            contender.round()
    for contender in contenders.values():
        contender.close()
    return contenders


def against(
    what: str, ours: Contender, peer: Contender, target: float | None, unit: str = "s", scale: float = 1.0
) -> Row:
    """One row of a race."""
    if ours.missing:
        raise SystemExit(f"{ours.name}: {ours.missing}")
    mine = median(ours.times) * scale
    if peer.missing:
        return Row(what, mine, None, unit, None, target, peer.name, peer.missing)
    theirs = median(peer.times) * scale
    noise = f"{spread([t * scale for t in ours.times])} against {spread([t * scale for t in peer.times])}"
    return Row(what, mine, theirs, unit, theirs / mine, target, peer.name, noise)
