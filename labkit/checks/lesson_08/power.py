"""A node that loses power while it saves: what its disk was not told to keep by then is gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from labkit.checks.lesson_08.disk import header_of_safetensors
from labkit.checks.lesson_08.killed import sizes

MOST_FILES = 1024  # that a rank may have open
OF_ONE_FILE = (os.fsync, os.fdatasync)
BEFORE = 10**9  # nanoseconds since 1970: when no file is written, and what marks those that were there
RENAMES = (os.rename, os.replace)
SLOW = 0.5  # seconds in which a disk has the bytes, on ranks for which the one that says "whole" must wait


class OnDisk:
    """A profile function that notes how much of each file below a folder the disk was told to keep, and
    when: what was written when `os.fsync` was called while the file was open, which takes `seconds`.

    named: when the last file or folder got its name by which a checkpoint may be known to be whole, on the
    clock that all ranks share; 0 where none did. A part is none.
    """

    def __init__(self, folder: Path, seconds: float = 0.0):
        self.folder = folder
        self.named = 0.0
        self._seconds = seconds
        self._told: list[tuple[float, int, int]] = []  # when, inode, bytes
        self._names = _names(folder)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument in (*OF_ONE_FILE, os.sync):
            meant = _open_files() if argument in OF_ONE_FILE else None
            found = [(i, size) for i, (_, size) in sizes(self.folder).items() if meant is None or i in meant]
            time.sleep(self._seconds)
            self._told += [(time.monotonic(), inode, size) for inode, size in found]
        if event == "c_call" and argument in RENAMES:
            self._names = _names(self.folder)
        if event == "c_return" and argument in RENAMES:
            renamed = [path for inode, path in _names(self.folder).items() if self._names.get(inode) != path]
            if any(not _is_part(path) for path in renamed):
                self.named = time.monotonic()

    def kept(self, until: float) -> dict[int, int]:
        """inode -> bytes that the disk was told to keep by then."""
        return {inode: size for when, inode, size in self._told if when <= until}


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


def note_what_is_on_disk(folder: Path, call: Callable[[], None], others: bool = False) -> OnDisk:
    """Run `call`, and note what of the files below `folder` the disk was told to keep. Files that are there
    before, and are not written again, are on it already.

    others: whether another rank says "whole", for which this rank's disk is slow.
    """
    for path, _ in sizes(folder).values():
        os.utime(path, ns=(BEFORE, BEFORE))
    noted = OnDisk(folder, SLOW if others else 0.0)
    threading.setprofile(noted)  # of threads that the call begins
    sys.setprofile(noted)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return noted


def lose_power(noted: OnDisk, group: dist.ProcessGroup) -> None:
    """Cut what was written to what the disk had before this rank said "whole", or else another one."""
    named = [noted.named] * dist.get_world_size(group)
    dist.all_gather_object(named, noted.named, group=group)
    kept = noted.kept(noted.named or max(named) or time.monotonic())
    for inode, (path, size) in sizes(noted.folder).items():
        if path.stat().st_mtime_ns != BEFORE:
            os.truncate(path, min(size, kept.get(inode, 0)))
