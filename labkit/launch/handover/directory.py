"""The private directory of an engine: only its user can enter it, and it goes when its owner goes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.processes import start_time, sweep

_YOUNG = 60  # seconds: another process may be between creating its directory and signing it
_FORGOTTEN = 30 * 86400  # seconds: no job lasts longer
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = "/proc/self/ns/pid"


def _prefix() -> str:
    return f"labkit-{os.getuid()}-"


def create() -> Path:
    """A new directory (mode 0700) that belongs to this process; directories of dead owners are removed."""
    remove_stale()
    path = Path(tempfile.mkdtemp(prefix=_prefix()))
    owner = {"pid": os.getpid(), "started": start_time(os.getpid()), "where": _where()}
    (path / "owner.json").write_text(json.dumps(owner))
    return path


def remove(path: Path) -> None:
    """Remove a directory and everything in it; one that is gone or partly removed is fine."""
    shutil.rmtree(path, ignore_errors=True)


def remove_stale() -> None:
    """Remove the directories, and end the processes, of owners that no longer run."""
    root = Path(tempfile.gettempdir())
    for path in root.glob(_prefix() + "*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and not _owned(path):
                sweep(str(path))
                remove(path)


def _owned(path: Path) -> bool:
    try:
        owner = json.loads((path / "owner.json").read_text())
        return _lives(owner) if owner["where"] == _where() else _age(path) < _FORGOTTEN
    except (FileNotFoundError, ValueError):
        return _age(path) < _YOUNG
    except (OSError, KeyError):
        return False


def _lives(owner: dict[str, Any]) -> bool:
    return start_time(owner["pid"]) == owner["started"] is not None


def _where() -> list[str]:
    """Where a process id means what it means here: the directory may be on a disk that several hosts, or
    several containers of one, have as their TMPDIR.
    """
    return [socket.gethostname(), _BOOT.read_text().strip(), os.readlink(_PIDS)]


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
