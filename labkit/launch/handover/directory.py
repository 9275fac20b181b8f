"""The private directory of an engine: only its user can enter it, and it goes when its owner goes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from labkit.processes import start_time, sweep


def _prefix() -> str:
    return f"labkit-{os.getuid()}-"


def create() -> Path:
    """A new directory (mode 0700) that belongs to this process; directories of dead owners are removed."""
    remove_stale()
    path = Path(tempfile.mkdtemp(prefix=_prefix()))
    owner = {"pid": os.getpid(), "started": start_time(os.getpid())}
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
        return start_time(owner["pid"]) == owner["started"] is not None
    except (FileNotFoundError, ValueError):
        return _young(path)  # another process may be between creating it and signing it
    except (OSError, KeyError):
        return False


def _young(path: Path) -> bool:
    import time

    return time.time() - path.stat().st_mtime < 60
