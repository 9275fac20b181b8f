"""A node that loses power while it saves: what its disk was not told to keep by then is gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.checks.lesson_08.disk import header_of_safetensors
from labkit.checks.lesson_08.killed import sizes

MOST_FILES = 1024  # that a rank may have open
OF_ONE_FILE = (os.fsync, os.fdatasync)
BEFORE = 10**9  # nanoseconds since 1970: when no file is written, and what marks those that were there
RENAMES = (os.rename, os.replace)


class OnDisk:
    """A profile function that notes how much of each file below a folder the disk was told to keep: what was
    written when `os.fsync` was called while the file was open.

    kept: inode -> bytes, at the end, or when the last file or folder got its name by which a checkpoint may
    be known to be whole: a part is none.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.kept: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._names = _names(folder)
        self._called_whole = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument in (*OF_ONE_FILE, os.sync):
            meant = _open_files() if argument in OF_ONE_FILE else None
            for inode, (_, size) in sizes(self.folder).items():
                if meant is None or inode in meant:
                    self._told[inode] = size
        if event == "c_call" and argument in RENAMES:
            self._names = _names(self.folder)
        if event == "c_return" and argument in RENAMES:
            renamed = [path for inode, path in _names(self.folder).items() if self._names.get(inode) != path]
            self._called_whole |= any(not _is_part(path) for path in renamed)
            self.kept = dict(self._told) if self._called_whole else self.kept

    def end(self) -> None:
        """The save is over: where no name said that it is whole, it is its end that counts."""
        if not self._called_whole:
            self.kept = self._told


def _names(folder: Path) -> dict[int, Path]:
    return {path.stat().st_ino: path for path in folder.rglob("*")}


def _is_part(path: Path) -> bool:
    """Whether it is a file of safetensors."""
    return path.is_file() and header_of_safetensors(path) is not None


def _open_files() -> set[int]:
    """Inodes of what this process has open; asked one by one, as a confined rank has no /proc."""
    found = set()
    for number in range(MOST_FILES):
        with contextlib.suppress(OSError):
            found.add(os.fstat(number).st_ino)
    return found


def lose_power_in(folder: Path, call: Callable[[], None]) -> None:
    """Run `call`, and cut the files below `folder` to what the disk was told to keep in time. Files that are
    there before, and are not written again, are on the disk already.
    """
    for path, _ in sizes(folder).values():
        os.utime(path, ns=(BEFORE, BEFORE))
    noted = OnDisk(folder)
    threading.setprofile(noted)  # of threads that the call begins
    sys.setprofile(noted)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    noted.end()
    for inode, (path, size) in sizes(folder).items():
        if path.stat().st_mtime_ns != BEFORE:
            os.truncate(path, min(size, noted.kept.get(inode, 0)))
