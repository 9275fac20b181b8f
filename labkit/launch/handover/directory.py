"""The private directory of an engine: only its user can enter it, and it goes when its owner goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from labkit.launch.handover.owner import owner_of, sign
from labkit.processes import sweep

_KEPT = {  # seconds
    "unknown": 60,  # another process may be between creating its directory and signing it
    "elsewhere": 30 * 86400,  # no job lasts longer
}
# Temporary folders of one check and one sandbox, which change with each job, and no such job lasts a day.
# They stay when their process is killed, with all that the ranks were handed.
_OF_CHECKS = ("labkit-check-*", "labkit-grading-*", "labkit-sandbox-*")
_A_DAY = 86400


def _prefix() -> str:
    return f"labkit-{os.getuid()}-"


def create() -> Path:
    """A new directory (mode 0700) that belongs to this process; directories of dead owners are removed."""
    remove_stale()
    path = Path(tempfile.mkdtemp(prefix=_prefix()))
    try:
        sign(path)
    except BaseException:
        remove(path)
        raise
    return path


def remove(path: Path) -> None:
    """Remove a directory and everything in it; one that is gone or partly removed is fine."""
    shutil.rmtree(path, ignore_errors=True)


def remove_stale() -> None:
    """Remove the directories, and end the processes, of owners that no longer run; so too what a check or a
    sandbox left a day ago.
    """
    root = Path(tempfile.gettempdir())
    for path in root.glob(_prefix() + "*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and not _owned(path):
                sweep(str(path))
                remove(path)
    for path in (found for name in _OF_CHECKS for found in root.glob(name)):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and _age(path) > _A_DAY:
                remove(path)


def _owned(path: Path) -> bool:
    owner = owner_of(path)
    return owner == "lives" or (owner != "gone" and _age(path) < _KEPT[owner])


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
