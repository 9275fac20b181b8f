"""One sandbox at work: it takes requests one after the other, is watched from outside, and is ended when it
oversteps.

What the inside says is never believed: a reply only means "look now", and what counts is what is found in
its files, what the kernel counted on its network, and the clock on this side.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from autograder.sandbox import COURSE, GRADER, IN, OUT, Sandbox, sandbox_pid
from autograder.usage import Traffic, Usage, end_all, usage_of

Ended = Literal["answered", "deadline", "memory", "processes", "files", "died"]
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


class CouldNotStart(RuntimeError):
    """The sandbox did not come up: nothing a student did."""


class Confined:
    """A started sandbox. Use as a context manager; leaving it ends everything inside.

    requests: the folder mounted at /in; one sub-folder a request, written before `run` is called with its
    name.
    hide: folders of labkit that must not be there.
    """

    def __init__(self, sandbox: Sandbox, requests: Path, hide: Sequence[str] = ()) -> None:
        self.sandbox, self.requests, self.hide = sandbox, requests, tuple(hide)
        self._scratch = tempfile.TemporaryDirectory(prefix="unconfined-") if not sandbox.bwrap else None
        self._errors = b""
        self._replies = b""
        self._process, self._pid = self._spawn()
        self.proc = Path(f"/proc/{self._pid}")
        self._wait_until_ready()

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> Path:
        """Where /out can be read from outside. Everything below it is the student's: never follow a link
        there.
        """
        return Path(self._scratch.name) if self._scratch else self.proc / f"root{OUT}"

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
        return usage_of(self.proc, self.out, self._process.pid, confined=bool(self.sandbox.bwrap))

    def traffic(self) -> Traffic | None:
        """Bytes and packets its loopback has carried, counted by the kernel."""
        return Traffic.read(self.proc) if self.sandbox.bwrap else None

    def last_words(self) -> str:
        """The end of what the sandbox itself wrote to stderr (not what the ranks print)."""
        self._drain_errors()
        return self._errors.decode(errors="replace").strip()[-2000:]

    def close(self) -> None:
        """End everything inside and wait until it is gone."""
        if self._process.poll() is None:
            if not self.sandbox.bwrap:
                end_all(self._process.pid)
            self._process.kill()
        self._process.wait(timeout=30)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._scratch:
            self._scratch.cleanup()

    def _verdict(self, replied: bool, usage: Usage, late: bool) -> tuple[Ended | None, str]:
        limits = self.sandbox.limits
        if usage.memory > limits.memory:
            return "memory", f"more than {limits.memory / 2**30:.1f} GiB of memory in use"
        if usage.processes > limits.processes:
            return "processes", f"more than {limits.processes} processes and threads"
        if usage.files > limits.files:
            return "files", f"more than {limits.files} files written"
        if replied:
            return "answered", ""
        if not self.alive:
            return "died", self.last_words()
        return ("deadline", "") if late else (None, "")

    def _reply(self) -> bool:
        """Whether a line has come within the next moment. What it says does not matter."""
        stdout, stderr = self._pipe("stdout"), self._pipe("stderr")
        ready, _, _ = select.select([stdout, stderr], [], [], LOOK_EVERY)
        if stderr in ready:
            self._drain_errors()
        if stdout not in ready:
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

    def _spawn(self) -> tuple[subprocess.Popen[bytes], int]:
        limits = json.dumps(self.sandbox.limits.inside() if self.sandbox.bwrap else {})
        if not self.sandbox.bwrap:
            process = _popen(_unconfined_command(self.requests, self.out, limits), (), None)
            os.set_blocking(process.stderr.fileno(), False)  # type: ignore[union-attr]
            return process, process.pid
        program = [sys.executable, "-s", "-E", "-B", f"{GRADER}/inside.py", IN, OUT, COURSE, limits]
        with _pipe() as (reading, writing), tempfile.TemporaryFile() as options:
            told = self.sandbox.options(self.requests, self.hide, writing.fileno())
            options.write("\0".join(told).encode())
            options.seek(0)
            # Through a file: the first process inside shows its command line to all others.
            command = [self.sandbox.bwrap, "--args", str(options.fileno()), "--", *program]
            process = _popen(command, (writing.fileno(), options.fileno()), {})
            writing.close()
            os.set_blocking(process.stderr.fileno(), False)  # type: ignore[union-attr]
            info = _read_all(reading.fileno())
        if not info:
            process.wait(timeout=30)
            words = process.stderr.read() if process.stderr else b""
            raise CouldNotStart((words or b"bubblewrap said nothing").decode(errors="replace"))
        return process, sandbox_pid(info)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._reply():
            if not self.alive or time.monotonic() > deadline:
                words = self.last_words()
                self.close()
                raise CouldNotStart(words or "the sandbox ended before it was ready")


def _popen(
    command: Sequence[str], pass_fds: Sequence[int], environment: dict[str, str] | None
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe,
        pass_fds=pass_fds, env=environment, start_new_session=True,
    )  # fmt: skip


def _unconfined_command(requests: Path, out: Path, limits: str) -> list[str]:
    here = Path(__file__).parent
    return [
        sys.executable,
        "-s",
        "-E",
        "-B",
        str(here / "inside.py"),
        str(requests),
        str(out),
        str(here.parent),
        limits,
    ]


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends as files, which close once: a number closed twice may be another thread's file by then."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as one, open(writing, "wb", buffering=0) as other:
        yield one, other


def _read_all(descriptor: int) -> str:
    """All that is written until the other side closes; bubblewrap closes at once."""
    data = b""
    while part := os.read(descriptor, 4096):
        data += part
        with contextlib.suppress(ValueError):
            json.loads(data)
            break
    return data.decode()


def ignore_broken_pipes() -> None:
    """A sandbox that dies while it is written to must not end the grader."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
