"""The sandbox where user namespaces work: bubblewrap.

The program gets namespaces of its own of every kind, a uid that is nobody's, no capabilities. The only
places that can be written are three small file systems in memory that vanish with it, whose sizes the
kernel enforces.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, ClassVar

from autograder.sandbox.contents import Emptied, Link, Piece, Shown, contents, program
from autograder.sandbox.sandbox import (
    OUT,
    CouldNotStart,
    Limits,
    NoSandbox,
    Sandbox,
    Started,
    end_process,
    spawn,
)
from autograder.sandbox.usage import Traffic, Usage, in_use, sockets_of
from autograder.sandbox.within.calls import SANDBOX_RULES, filter_of
from labkit.cgroups import Group

SECONDS = 60.0  # the most that bubblewrap takes for its mounts: one of a network that is gone hangs
PACKAGE_TO_INSTALL = "bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


def find(limits: Limits) -> Bubblewrap:
    """This machine's, tried out. NoSandbox says what is missing."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise NoSandbox(f"it is not here. Install {PACKAGE_TO_INSTALL}.")
    if problem := _try_out(bwrap):
        raise NoSandbox(
            f"it is installed but cannot confine a program here: {problem}\n"
            "  User namespaces must be allowed (sysctl user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone; in a container: not blocked by its seccomp profile)."
        )
    return Bubblewrap(bwrap=bwrap, limits=limits)


@dataclass(frozen=True, kw_only=True)
class Bubblewrap(Sandbox):
    """bwrap: where the program is."""

    name: ClassVar[str] = "bubblewrap"
    apart: ClassVar[bool] = True
    bwrap: str

    def start(self, requests: Path, hide: Sequence[str]) -> Started:
        """See `Sandbox.start`. What bubblewrap itself says goes through a pipe of its own."""
        words, refused = program(json.dumps(self.limits.inside()), self.ranks), filter_of(SANDBOX_RULES)
        with contextlib.ExitStack() as undone:
            if group := self.new_group():
                undone.callback(group.end)
            with _pipe() as (reading, writing), _file(refused) as calls:
                told = self.options(requests, hide, writing.fileno(), calls.fileno() if refused else None)
                with _file("\0".join(told).encode()) as options:
                    # Through a file: the first process inside shows its command line to all others.
                    command = [self.bwrap, "--args", str(options.fileno()), "--", *words]
                    process = spawn(command, (writing.fileno(), calls.fileno(), options.fileno()), {}, group)
                undone.callback(end_process, process)
                writing.close()
                first = _first_inside(reading.fileno(), SECONDS)
            if first is None:
                raise CouldNotStart(_why_not(process))
            undone.pop_all()
        return _Started(process, first, group)

    def options(
        self, requests: Path, hide: Sequence[str], info_fd: int, calls_fd: int | None = None
    ) -> list[str]:
        """bubblewrap's options: `requests` is mounted at /in, what it started is reported on `info_fd`, and
        a filter of the calls it may make is read from `calls_fd`.
        """
        return [
            *(["--seccomp", str(calls_fd)] if calls_fd is not None else []),
            *("--unshare-all", "--unshare-user", "--die-with-parent"),
            *("--new-session", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "lab"),
            *("--clearenv", "--info-fd", str(info_fd)),
            *("--proc", "/proc", "--dev", "/dev"),
            *_writable_mounts(self.limits),  # before the interpreter, which may itself be under /tmp
            *(word for piece in contents(requests, hide) for word in _mount(piece)),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        ]


class _Started(Started):
    def __init__(self, process: subprocess.Popen[bytes], first: int, group: Group | None) -> None:
        self.process, self._first, self.group = process, first, group
        self._proc = Path(f"/proc/{first}")

    @property
    def pid(self) -> int:
        return self._first

    @property
    def out(self) -> Path:
        return self._proc / f"root{OUT}"

    def usage(self) -> Usage:
        inside = self._proc / "root/proc"
        try:
            processes = [inside / name for name in os.listdir(inside) if name.isdigit()]
            disk = os.statvfs(self.out)
        except OSError:
            return Usage()
        memory, threads = in_use(processes)
        return Usage(memory, threads, sockets_of(processes), files=disk.f_files - disk.f_ffree)

    def traffic(self) -> Traffic | None:
        try:
            return Traffic.of(*((self._proc / "net" / name).read_text() for name in ("dev", "snmp")))
        except OSError:
            return None


# Whether a program inside can give each rank a place of its own.
_TRIAL = """
import sys
sys.path.insert(0, sys.argv[1])
from autograder.sandbox.inside import become_keeper
from autograder.sandbox.within.mesh import Mesh
become_keeper()
with Mesh(2) as mesh:
    mesh.counted()
"""


@cache
def _try_out(bwrap: str) -> str:
    """Why a confined program cannot be started here, or cannot keep ranks apart; empty when it can."""
    confined = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--cap-drop",
        "ALL",
        "--uid",
        "65534",
        "--gid",
        "65534",
    ]
    seen = ["--ro-bind", "/", "/", "--proc", "/proc"]
    trial = [sys.executable, "-B", "-c", _TRIAL, str(Path(__file__).parents[2])]
    try:
        done = subprocess.run([*confined, *seen, *trial], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip()[-500:] or f"exit status {done.returncode}"


def _mount(piece: Piece) -> list[str]:
    match piece:
        case Shown(source, at):
            return ["--ro-bind", source, at]
        case Link(to, at):
            return ["--symlink", to, at]
        case Emptied(at):
            return ["--tmpfs", at, "--remount-ro", at]


def _writable_mounts(limits: Limits) -> list[str]:
    sizes = {OUT: limits.answers, "/tmp": limits.scratch, "/dev/shm": limits.shared_memory}
    return [word for path, size in sizes.items() for word in ("--size", str(size), "--tmpfs", path)]


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[IO[bytes]]:
    """An open file without a name, to be read from its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends as files, which close once: a number closed twice may be another thread's file by then."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as one, open(writing, "wb", buffering=0) as other:
        yield one, other


def _why_not(process: subprocess.Popen[bytes]) -> str:
    """What bubblewrap said that reported no program inside."""
    try:
        process.wait(1.0)
        why = "bubblewrap said nothing"
    except subprocess.TimeoutExpired:
        why = f"bubblewrap started nothing within {SECONDS:g} s: does a file system here not answer?"
    said = (process.stderr.read() if process.stderr else None) or b""
    return said.decode(errors="replace") or why


def _first_inside(descriptor: int, seconds: float) -> int | None:
    """The process that bubblewrap reports; None when it closes without a word, or says nothing so long."""
    data, deadline = b"", time.monotonic() + seconds
    poll = select.poll()  # select.select knows no number from 1024 on
    poll.register(descriptor, select.POLLIN)
    while poll.poll(1000 * max(0.0, deadline - time.monotonic())):
        part = os.read(descriptor, 4096)
        data += part
        with contextlib.suppress(ValueError):
            return int(json.loads(data)["child-pid"])
        if not part:
            break
    return None
