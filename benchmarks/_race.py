"""Contenders that take turns: each a process of its own, warm, that works once for each line it reads."""

from __future__ import annotations

import contextlib
import io
import os
import select
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


LONGEST = 120.0
"""Seconds a contender may take to start, or for a round: many times what the slowest need."""


class Contender:
    """A contender's process. One that is not installed, fails or takes too long has a reason instead.

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

    def warm_up(self, longest: float = LONGEST) -> None:
        """Wait until it is ready."""
        self._expect("ready", longest)

    def round(self, longest: float = LONGEST) -> None:
        """Have it do its thing once."""
        if not self.missing:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, and says nothing more
                self._process.stdin.write("once\n")
                self._process.stdin.flush()
            self._expect("", longest)

    def _expect(self, word: str, longest: float) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], longest)[0]:
            self._process.kill()
            self.missing = f"no answer within {longest:g} s"
            return
        line = self._process.stdout.readline().strip()
        if not line:
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["?"])[-1][:80]
            self.missing = f"failed: {last}" if "ModuleNotFound" not in last else last.partition(": ")[2]
        elif line != word:
            self.times.append(float(line))

    def close(self) -> None:
        """Have it end what it started; one that does not in a minute is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def race(names: Sequence[str], rounds: int, longest: float = LONGEST) -> dict[str, Contender]:
    """Run the contenders in turn, `rounds` times each, in `longest` seconds a round. None runs on after that,
    also when this is interrupted.
    """
    contenders: dict[str, Contender] = {}
    with contextlib.ExitStack() as running:
        for name in names:
            contenders[name] = running.enter_context(contextlib.closing(Contender(name)))
            contenders[name].warm_up(longest)
        for _ in range(rounds):
            for contender in contenders.values():
                contender.round(longest)
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
