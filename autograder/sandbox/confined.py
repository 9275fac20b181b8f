"""One sandbox at work: it takes requests one after the other, is watched from outside, and is ended when it
oversteps.

What the inside says is never believed: a reply only means "look now", and what counts is what is found in
its files, what the kernel counted on its network, and the clock on this side.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Literal

from autograder.sandbox.sandbox import MIB, CouldNotStart, Sandbox
from autograder.sandbox.usage import Traffic, Usage

Ended = Literal["answered", "deadline", "memory", "processes", "sockets", "files", "died"]
START_SECONDS = 120.0  # a cold disk reads torch slowly
LOOK_EVERY = 0.03
LONGEST_REPLY = 64 * 1024


@dataclass(frozen=True)
class Outcome:
    """How one request ended, as seen from outside. traffic: None where it cannot be counted."""

    ended: Ended
    detail: str = ""
    seconds: float = 0.0
    traffic: Traffic | None = None
    memory: int = 0  # bytes, the most that was seen


class Confined:
    """A started sandbox. Use as a context manager; leaving it ends everything inside.

    requests: the folder mounted at /in; one sub-folder a request, written before `run` is called with its
    name.
    hide: folders of labkit that must not be there.
    """

    def __init__(self, sandbox: Sandbox, requests: Path, hide: Sequence[str] = ()) -> None:
        self.sandbox, self.requests, self.hide = sandbox, requests, tuple(hide)
        self._errors = b""
        self._started = sandbox.start(requests, self.hide)
        self._process = self._started.process
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the sandbox still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The first process inside."""
        return self._started.pid

    @property
    def out(self) -> Path:
        """Where /out can be read from outside. Everything below it is the student's: never follow a link
        there.
        """
        return self._started.out

    def run(self, name: str, seconds: float) -> Outcome:
        """Have the request called `name` run; at most `seconds`, then everything inside is ended."""
        before, started, peak = self.traffic(), time.monotonic(), 0
        try:
            self._stdin.write(json.dumps({"request": name}).encode() + b"\n")
            self._stdin.flush()
        except OSError:
            return Outcome("died", self.last_words())
        while True:
            replied = self._reply()
            usage = self.usage()
            peak = max(peak, usage.memory)
            ended, detail = self._verdict(replied, usage, time.monotonic() - started > seconds)
            if ended:
                break
        if ended != "answered":
            self.close()
        after = self.traffic() if ended == "answered" else None
        counted = after - before if after and before else None
        return Outcome(ended, detail, time.monotonic() - started, counted, peak)

    def usage(self) -> Usage:
        """What its processes have used so far."""
        return self._started.usage()

    def traffic(self) -> Traffic | None:
        """Bytes and packets its loopback has carried, counted by the kernel."""
        return self._started.traffic()

    def last_words(self) -> str:
        """The end of what the sandbox itself wrote to stderr (not what the ranks print)."""
        self._drain_errors()
        return self._errors.decode(errors="replace").strip()[-2000:]

    def close(self) -> None:
        """End everything inside and wait until it is gone. CouldNotEnd when it does not go."""
        try:
            self._started.end()
        finally:
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _verdict(self, replied: bool, usage: Usage, late: bool) -> tuple[Ended | None, str]:
        limits = self.sandbox.limits
        if usage.memory > limits.memory or self._started.out_of_memory():
            return "memory", f"more than {limits.memory / 2**30:.1f} GiB of memory in use"
        if usage.processes > limits.processes:
            return "processes", f"more than {limits.processes} processes and threads"
        if usage.sockets > limits.sockets:
            return "sockets", f"more than {limits.sockets} sockets open on one rank"
        if usage.files > limits.files:
            return "files", f"more than {limits.files} files written"
        if usage.written > limits.answers + limits.scratch:
            return "files", f"more than {(limits.answers + limits.scratch) // MIB} MiB written"
        if usage.shared > limits.shared_memory:
            return "memory", f"more than {limits.shared_memory // MIB} MiB of shared memory in use"
        if replied:
            return "answered", ""
        if not self.alive:
            return "died", self.last_words()
        return ("deadline", "") if late else (None, "")

    def _reply(self) -> bool:
        """Whether a line has come within the next moment. What it says does not matter."""
        stdout, stderr = self._pipe("stdout"), self._pipe("stderr")
        ready = wait([stdout.fileno(), stderr.fileno()], LOOK_EVERY)  # select knows no number from 1024 on
        if stderr.fileno() in ready:
            self._drain_errors()
        if stdout.fileno() not in ready:
            return False
        data = os.read(stdout.fileno(), LONGEST_REPLY)
        if not data:
            time.sleep(LOOK_EVERY)
        return b"\n" in data

    def _drain_errors(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._errors = (self._errors + (os.read(self._pipe("stderr").fileno(), LONGEST_REPLY) or b""))[
                -8192:
            ]

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] | None = getattr(self._process, name)
        assert pipe is not None
        return pipe

    @property
    def _stdin(self) -> IO[bytes]:
        return self._pipe("stdin")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._reply():
            late = time.monotonic() > deadline
            if late or not self.alive:
                why = f"not ready after {START_SECONDS:g} s" if late else "it ended before it was ready"
                raise CouldNotStart(self.last_words() or f"the sandbox cannot be used: {why}")
        self._started.look_in()
