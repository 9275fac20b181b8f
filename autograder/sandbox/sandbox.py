"""What a sandbox is: a way to start a program that can harm nothing, and to see from outside what it does.

Two kinds confine: bubblewrap where user namespaces work, Apptainer where they do not. What is inside, with
both: the interpreter and its packages, the system's libraries, `labkit`, and one read-only folder of
requests. What is not: the course, the gradebook, this package, other submissions, the grader's environment,
a home, a network.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from autograder.sandbox.usage import Traffic, Usage
from labkit.cgroups import Group, NoGroup, make_group

MIB = 2**20
IN, OUT, COURSE, GRADER = "/in", "/out", "/course", "/grader"
END_SECONDS = 30.0  # the most that a process takes to be gone once killed
OF_OURS = 50  # processes and threads of the sandbox's own and of Apptainer's, that count in a group too


class NoSandbox(RuntimeError):
    """This machine cannot confine student code."""


class CouldNotStart(RuntimeError):
    """The sandbox did not come up: nothing a student did."""


class CouldNotEnd(RuntimeError):
    """The sandbox was killed and is still there: nothing a student is charged with."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use, all its processes together unless said otherwise. Bytes, seconds, counts."""

    memory: int = 6 * 2**30
    address_space: int = 12 * 2**30  # of one process; torch alone reserves 1.5 GiB
    # threads included, three for each group of a rank: 8 ranks of lesson 09 have 160, and over 320 where each
    # trainer makes groups of its own
    processes: int = 800
    cpu_seconds: int = 300  # of one process
    answers: int = 192 * MIB  # all that can be written under /out
    scratch: int = 64 * MIB  # /tmp
    shared_memory: int = 256 * MIB  # /dev/shm
    files: int = 20_000  # how many can be created under /out
    open_files: int = 1024
    sockets: int = 600  # of one network: an honest rank has 25, and Apptainer has all ranks in one

    def inside(self) -> dict[str, int]:
        """The limits a process sets on itself before any student code is loaded, by their `resource`
        names.
        """
        return {
            "RLIMIT_AS": self.address_space,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.answers,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CORE": 0,
        }


class Started(ABC):
    """A program in a sandbox, as it is seen from outside.

    process: the child of ours to talk to; it ends when everything inside has. group: the control group that
    it and all inside are in, where there is one.
    """

    process: subprocess.Popen[bytes]
    group: Group | None = None

    @property
    @abstractmethod
    def pid(self) -> int:
        """The first process inside."""

    @property
    @abstractmethod
    def out(self) -> Path:
        """Where /out can be read from outside. Everything below it is the student's: never follow a link
        there.
        """

    def look_in(self) -> None:  # noqa: B027  (most kinds can look at any time)
        """Called once, when the program is ready and before any student code runs."""

    @abstractmethod
    def usage(self) -> Usage:
        """What is in use now; nothing when it has just ended."""

    @abstractmethod
    def traffic(self) -> Traffic | None:
        """Bytes and packets its loopback has carried, counted by the kernel; None where nothing is."""

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended something inside for the memory of all together."""
        return self.group is not None and self.group.out_of_memory()

    def end(self) -> None:
        """End everything inside and wait until it is gone. Can be called again. Where it does not go, what
        the sandbox holds on this side is let go all the same, and CouldNotEnd raised.
        """
        try:
            end_process(self.process)
        finally:
            if self.group is not None:
                self.group.end()


@dataclass(frozen=True, kw_only=True)
class Sandbox(ABC):
    """A way to start `inside.py` confined."""

    name: ClassVar[str]
    apart: ClassVar[bool] = False  # whether each rank is in a place of its own, and pairs of them are counted
    limits: Limits = field(default_factory=Limits)
    groups: Path | None = None  # the control group in which each sandbox gets one; None where none can be had

    @property
    def ranks(self) -> str:
        """What the program inside is told of how its ranks are to be."""
        return "apart" if self.apart else "together"

    def new_group(self) -> Group | None:
        """A control group for one sandbox, with its limits."""
        if self.groups is None:
            return None
        try:
            return make_group(self.groups, self.limits.memory, self.limits.processes + OF_OURS)
        except (NoGroup, OSError) as error:
            raise CouldNotStart(f"no control group could be made: {error}") from None

    @abstractmethod
    def start(self, requests: Path, hide: Sequence[str]) -> Started:
        """`inside.py`, with `requests` at /in, without the files and folders of labkit named in `hide`."""


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and wait until it is gone; CouldNotEnd when it does not go."""
    if process.poll() is None:
        process.kill()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        raise CouldNotEnd(
            f"process {process.pid} of the sandbox was killed and is still there after {END_SECONDS:g} s. "
            f"`ps -o stat,wchan -p {process.pid}` shows what it waits for, a disk that does not answer or a "
            "debugger as a rule; grade again when it is gone"
        ) from None


def spawn(
    command: Sequence[str],
    pass_fds: Sequence[int],
    environment: Mapping[str, str] | None,
    group: Group | None = None,
) -> subprocess.Popen[bytes]:
    """A child with three pipes, in a session of its own; its errors are read without waiting."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        group.entering(command) if group else command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        pass_fds=pass_fds,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    return process
