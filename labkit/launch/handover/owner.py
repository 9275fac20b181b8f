"""Which process a directory belongs to, so that others can tell what was left behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

import msgspec

from labkit.processes import start_time

OWNER = "owner.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = "/proc/self/ns/pid"


class Owner(msgspec.Struct, frozen=True):
    """A process for good. started: as `start_time` has it. where: the host, its boot, and the namespace of
    process ids in which the pid means this process.
    """

    pid: int
    started: int | None
    where: list[str]


def sign(path: Path) -> None:
    """Make a directory this process's own."""
    owner = Owner(os.getpid(), start_time(os.getpid()), _where())
    (path / OWNER).write_bytes(msgspec.json.encode(owner))


def owner_of(path: Path) -> Literal["lives", "gone", "elsewhere", "unknown"]:
    """How it is with the process that a directory belongs to.

    "elsewhere": on a host or in a container whose processes cannot be asked for here. "unknown": the
    directory is not signed yet, or its signature cannot be read.
    """
    try:
        owner = msgspec.json.decode((path / OWNER).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return "unknown"
    if owner.where != _where():
        return "elsewhere"
    return "lives" if start_time(owner.pid) == owner.started is not None else "gone"


def _where() -> list[str]:
    """Where a process id means what it means here: the directory may be on a disk that several hosts, or
    several containers of one, have in common.
    """
    return [socket.gethostname(), _BOOT.read_text().strip(), os.readlink(_PIDS)]
