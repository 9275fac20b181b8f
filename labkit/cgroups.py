"""Control groups, version 2: a limit by the kernel on what a program and all it starts use together.

It counts what no process's own figures show: buffers of sockets and pipes, empty files, memory that several
processes share. A group can be had below one whose `memory` and `pids` are handed on and that this user may
write to: by root as a rule, and by anybody within `systemd-run --user --scope -p Delegate=yes COMMAND`, or
where a site hands a job's group to its owner. See the kernel's admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHOICE = "LABKIT_CGROUP"  # a group to divide, in place of those that this process is in
NEEDED = ("memory", "pids")
SECONDS = 10.0  # the most that processes take to be gone once killed
TRIAL_SECONDS = 10.0  # the most that a program in a group that is tried takes to have done nothing
_ENTER = 'echo 0 > "$0" && exec "$@"'  # for a shell: itself into the group, then the command in its place


class NoGroup(RuntimeError):
    """No group can be made here; the message says why."""


@dataclass(frozen=True)
class Group:
    """A group of one's own. path: its folder."""

    path: Path

    def entering(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the group, as the same process."""
        return ["/bin/sh", "-c", _ENTER, str(self.path / "cgroup.procs"), *command]

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended something in it for its memory."""
        with contextlib.suppress(OSError):
            counts = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(counts.get("oom_kill", 0)) > 0
        return False

    def end(self) -> None:
        """End everything in it, and remove it. Can be called again. What is not gone SECONDS after it was
        killed stays, and the group with it.
        """
        until = time.monotonic() + SECONDS
        while self.path.exists() and time.monotonic() < until:
            _kill_all(self.path)
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.01)


def make_group(parent: Path, memory: int, processes: int) -> Group:
    """A new group below one that can be divided. memory: bytes; processes: threads included. NoGroup when it
    cannot be made.
    """
    try:
        group = Group(Path(tempfile.mkdtemp(prefix="labkit-", dir=parent)))
    except OSError as error:
        raise NoGroup(f"{parent}: no group can be made in it: {error.strerror}") from None
    try:
        (group.path / "memory.max").write_text(str(memory))
        (group.path / "pids.max").write_text(str(processes))
        (group.path / "memory.oom.group").write_text("1")
        with contextlib.suppress(OSError):  # not there without swap
            (group.path / "memory.swap.max").write_text("0")
    except OSError as error:
        group.end()
        raise NoGroup(f"{group.path}: {error.strerror}") from None
    return group


def divisible_group(
    membership: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")
) -> Path:
    """The nearest group that can be divided: LABKIT_CGROUP's alone where that is set, else this process's
    own, or one above it. Each is tried by making a group in it and running a program there. NoGroup says why
    there is none.
    """
    named = os.environ.get(CHOICE)
    candidates = [Path(named)] if named else []
    with contextlib.suppress(OSError, ValueError):  # a kernel without any tells of none
        candidates = candidates or list(own_groups(membership, mounts))
    if not candidates:
        raise NoGroup("this host has no control groups of version 2")
    refusals = []
    for path in candidates:
        if not (refusal := _refusal(path)):
            return path
        refusals.append(refusal)
    raise NoGroup(refusals[0])


def _kill_all(path: Path) -> None:
    """Kill what is in a group, at once where the kernel can (5.14)."""
    with contextlib.suppress(OSError):
        (path / "cgroup.kill").write_text("1")
        return
    with contextlib.suppress(OSError):
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def own_groups(
    membership: Path = Path("/proc/self/cgroup"),
    mounts: Path = Path("/proc/self/mountinfo"),
    controller: str = "",
) -> Iterator[Path]:
    """The folder of this process's group and of all that it is in, from within.

    controller: "" for the hierarchy of version 2, else the one of version 1 that has this. None without it.
    """
    memberships = [line.split(":", 2)[1:] for line in membership.read_text().splitlines()]
    own = [path for names, path in memberships if controller in names.split(",")]
    for line in mounts.read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if not own or not _is_hierarchy(kind, controller):
            continue
        shown, at = fields.split()[3:5]
        inside = Path("/", os.path.relpath(own[0], shown))
        yield from (Path(at, path.relative_to("/")) for path in (inside, *inside.parents))


def _is_hierarchy(kind: str, controller: str) -> bool:
    """Whether a mount is the hierarchy of this controller. kind: its type, its source and its options."""
    words = kind.split()
    if not controller:
        return words[0] == "cgroup2"
    return words[0] == "cgroup" and controller in words[-1].split(",")


def _refusal(path: Path) -> str:
    """Why a group cannot be divided by this process; empty when it can."""
    try:
        handed_on = (path / "cgroup.subtree_control").read_text().split()
        if lacking := [name for name in NEEDED if name not in handed_on]:
            return f"{path} hands on no {' and no '.join(lacking)}"
        group = make_group(path, 2**30, 100)
    except (OSError, NoGroup) as error:
        return f"{path} cannot be divided: {error}"
    try:
        done = subprocess.run(
            group.entering(["/bin/sh", "-c", ":"]), capture_output=True, text=True, timeout=TRIAL_SECONDS
        )
        return "" if done.returncode == 0 else f"{path}: {done.stderr.strip()[-200:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}: no program could be run in a group of it: {error}"
    finally:
        group.end()
