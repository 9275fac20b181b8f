"""A node that loses power after a save: what its disk was never told to keep is gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.checks.lesson_08.killed import sizes

MOST_FILES = 1024  # that a rank may have open
OF_ONE_FILE = (os.fsync, os.fdatasync)


class OnDisk:
    """A profile function that notes how much of each file below a folder the disk was told to keep: what was
    written when `os.fsync` was called while the file was open.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.kept: dict[int, int] = {}  # inode -> bytes

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or argument not in (*OF_ONE_FILE, os.sync):
            return
        meant = _open_files() if argument in OF_ONE_FILE else None
        for inode, (_, size) in sizes(self.folder).items():
            if meant is None or inode in meant:
                self.kept[inode] = size


def _open_files() -> set[int]:
    """Inodes of what this process has open; asked one by one, as a confined rank has no /proc."""
    found = set()
    for number in range(MOST_FILES):
        with contextlib.suppress(OSError):
            found.add(os.fstat(number).st_ino)
    return found


def lose_power_after(folder: Path, call: Callable[[], None]) -> None:
    """Run `call`, and cut the files below `folder` to what the disk was told to keep while it ran."""
    noted = OnDisk(folder)
    threading.setprofile(noted)  # of threads that the call begins
    sys.setprofile(noted)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    for inode, (path, size) in sizes(folder).items():
        os.truncate(path, min(size, noted.kept.get(inode, 0)))
