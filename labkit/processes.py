"""Knowing and ending processes: nothing that a job started may outlive it. Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType

ENGINE_MARK = "LABKIT_ENGINE"  # in the environment of every process of an engine: its directory
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends; leave now if `parent` already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def ending_signals_do(act: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Within it Ctrl-C, a job's end (SIGTERM) and a closed terminal (SIGHUP) call `act`, a signal handler.

    Where nohup has said that a closed terminal is to be outlived, it is. For the main thread.
    """
    outlived = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in _ENDING if number != signal.SIGHUP or not outlived]
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they can be found and ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid this names a process for good."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return _state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether a signal holds the process up until SIGCONT."""
    return _state(pid) in ("T", "t")


def _state(pid: int) -> str:
    """The letter of a process's state; "" where there is none."""
    return next(iter(_stat(pid)), "")


def _stat(pid: int) -> list[str]:
    """What proc(5) tells of a process behind its name; nothing where there is none.

    The name is any bytes: Linux cuts it after the fifteenth, in the middle of a character too.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def children() -> list[int]:
    """The direct children of this process, zombies included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def marked(directory: str, variable: str = ENGINE_MARK) -> list[int]:
    """Processes that carry the mark of the engine with this directory, this process excepted.

    variable: that has the mark, where it is not an engine's.
    """
    mark = f"{variable}={directory}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end(pids: Iterable[int], grace: float) -> None:
    """SIGTERM, `grace` seconds, SIGKILL; returns when none of them runs (or 2 s after the SIGKILL)."""
    remaining = [pid for pid in pids if is_alive(pid)]
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        for pid in remaining:
            send(pid, number)
        until = time.monotonic() + patience
        while remaining and time.monotonic() < until:
            time.sleep(0.002)
            remaining = [pid for pid in remaining if is_alive(pid)]
        if not remaining:
            return


def sweep(directory: str) -> None:
    """SIGKILL everything that carries the mark of an engine that is gone; returns when none of it runs, or
    after 2 s: what a disk or a driver holds up ends when that lets go of it.
    """
    until = time.monotonic() + 2
    while (left := [pid for pid in marked(directory) if is_alive(pid)]) and time.monotonic() < until:
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.002)


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended; it is not reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def end_at_once(pids: Iterable[int]) -> None:
    """SIGKILL children, and wait until they are gone. They stay zombies, for their owner to reap."""
    pids = list(pids)
    for pid in pids:
        send(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def end_children(but: Collection[int] = ()) -> None:
    """SIGKILL and reap every child of this process, and the orphans that it adopts meanwhile; returns when
    there are none, or after 2 s, as `sweep`. but: those that stay.
    """
    until = time.monotonic() + 2
    while (left := [pid for pid in children() if pid not in but]) and time.monotonic() < until:
        for pid in left:
            send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
