"""Runs a program where it can harm nothing: bubblewrap, a filesystem of its own, no network, limits on
everything.

What is inside: the interpreter and its packages, the system's libraries, `labkit`, and one read-only folder
of requests. What is not: the course, the gradebook, this package, other submissions, the environment, a
home, a network. The only places that can be written are three small file systems in memory that vanish with
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import labkit

MIB = 2**20
IN, OUT, COURSE, GRADER = "/in", "/out", "/course", "/grader"
PACKAGE_TO_INSTALL = "bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


class NoSandbox(RuntimeError):
    """This machine cannot confine student code."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use, all its processes together unless said otherwise. Bytes, seconds, counts."""

    memory: int = 6 * 2**30
    address_space: int = 12 * 2**30  # of one process; torch alone reserves 1.5 GiB
    processes: int = 200  # threads included
    cpu_seconds: int = 300  # of one process
    answers: int = 192 * MIB  # all that can be written under /out
    scratch: int = 64 * MIB  # /tmp
    shared_memory: int = 256 * MIB  # /dev/shm
    files: int = 20_000  # how many can be created under /out
    open_files: int = 1024
    log: int = MIB // 4  # what is kept of one rank's output

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


@dataclass(frozen=True)
class Sandbox:
    """A way to start a confined program, or, with `bwrap` empty, an unconfined one that marks every grade."""

    bwrap: str
    limits: Limits = field(default_factory=Limits)

    @property
    def name(self) -> str:
        return "bubblewrap" if self.bwrap else "none"

    def options(self, requests: Path, hide: Sequence[str], info_fd: int) -> list[str]:
        """bubblewrap's options: `requests` is mounted at /in, what it started is reported on `info_fd`."""
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
            *("--new-session", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "lab"),
            *("--clearenv", "--info-fd", str(info_fd)),
            *("--proc", "/proc", "--dev", "/dev"),
            *_writable_mounts(self.limits),  # before the interpreter, which may itself be under /tmp
            *_system_mounts(),
            *("--ro-bind", str(requests), IN),
            *_course_mounts(hide),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
        ]

    def works(self) -> str:
        """Why a confined program cannot be started here; empty when it can."""
        return _try_out(self.bwrap)


def find_sandbox(limits: Limits | None = None) -> Sandbox:
    """The sandbox of this machine. NoSandbox says what to install, or what stands in the way."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise NoSandbox(
            f"student code needs a sandbox and this machine has none.\nInstall {PACKAGE_TO_INSTALL}.\n"
            "To try the grader without one, on code you trust, add --unsafe-no-sandbox: grades are marked."
        )
    sandbox = Sandbox(bwrap, limits or Limits())
    if problem := sandbox.works():
        raise NoSandbox(
            f"bubblewrap is installed but cannot confine a program here: {problem}\n"
            "User namespaces must be allowed (sysctl user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone; in a container: not blocked by its seccomp profile)."
        )
    return sandbox


@cache
def _try_out(bwrap: str) -> str:
    command = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "true",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def _system_mounts() -> list[str]:
    """Libraries and the interpreter, read-only, where they are outside; no shell and no tools."""
    mounts = []
    for directory in ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/etc/ld.so.cache"):
        path = Path(directory)
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), directory]
        elif path.exists():
            mounts += ["--ro-bind", directory, directory]
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
        if prefix == "/usr":
            interpreter = os.path.realpath(sys.executable)
            mounts += ["--ro-bind", interpreter, interpreter]
            mounts += ["--ro-bind-try", "/usr/local/lib", "/usr/local/lib"]
        else:
            mounts += ["--ro-bind", prefix, prefix]
    return mounts


def _writable_mounts(limits: Limits) -> list[str]:
    sizes = {OUT: limits.answers, "/tmp": limits.scratch, "/dev/shm": limits.shared_memory}
    return [word for path, size in sizes.items() for word in ("--size", str(size), "--tmpfs", path)]


def _course_mounts(hide: Sequence[str]) -> list[str]:
    """labkit without what is hidden, and the one file of this package that runs inside."""
    package = Path(labkit.__file__).parent
    mounts = ["--ro-bind", str(package), f"{COURSE}/labkit"]
    for name in hide:
        if (package / name).is_file():
            mounts += ["--ro-bind", str(package / "py.typed"), f"{COURSE}/labkit/{name}"]  # an empty file
        elif (package / name).is_dir():
            mounts += ["--tmpfs", f"{COURSE}/labkit/{name}", "--remount-ro", f"{COURSE}/labkit/{name}"]
    here = Path(__file__).parent
    mounts += ["--ro-bind", str(here / "inside.py"), f"{GRADER}/inside.py"]
    if here.is_relative_to(sys.prefix):  # installed among the packages that are mounted above
        mounts += ["--tmpfs", str(here), "--remount-ro", str(here)]
        mounts += ["--ro-bind", str(here / "inside.py"), f"{GRADER}/inside.py"]
    return mounts


def sandbox_pid(info: str) -> int:
    """The sandbox's first process as bubblewrap reported it."""
    return int(json.loads(info)["child-pid"])
