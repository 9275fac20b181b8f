"""A rank that is killed while it writes a file, or before it gives one another name or deletes it, as the
others and the disk see it: a thread that stops for ever in the middle of it and runs nothing more, no
`except` and no `finally`. Its process lives on, to report.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

Sizes = dict[int, tuple[Path, int]]  # inode -> where it is, bytes
Grown = list[tuple[Path, int, int]]  # file, bytes before and now
OF_NAMES = (os.unlink, os.remove, os.rename, os.replace)


class Operations:
    """A thread's profile function that notices when files have grown, after each call the thread makes, and
    where `of_names` counts when it is about to rename or delete one.

    on_operation: called with its number and the files that grew. A file that is renamed has not grown.
    """

    def __init__(self, folder: Path, of_names: bool, on_operation: Callable[[int, Grown], None]):
        self.folder, self.of_names, self.on_operation = folder, of_names, on_operation
        self.count, self.seen = 0, sizes(folder)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        now = sizes(self.folder)
        nothing = (self.folder, 0)
        grown = [
            (path, self.seen.get(inode, nothing)[1], size)
            for inode, (path, size) in now.items()
            if size > self.seen.get(inode, nothing)[1]
        ]
        self.seen = now
        if grown or (self.of_names and event == "c_call" and argument in OF_NAMES):
            self.count += 1
            self.on_operation(self.count, grown)


def sizes(folder: Path) -> Sizes:
    """The files below a folder."""
    found: Sizes = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path.stat().st_ino] = (path, path.stat().st_size)
    return found


def count_operations(folder: Path, of_names: bool, call: Callable[[], None]) -> int:
    """How often files of a folder grow while `call` runs in this thread, and get other names or none."""
    operations = Operations(folder, of_names, lambda number, grown: None)
    sys.setprofile(operations)
    try:
        call()
    finally:
        sys.setprofile(None)
    return operations.count


def stop_in(folder: Path, of_names: bool, operation: int, call: Callable[[], None], seconds: float) -> bool:
    """Run `call` in a thread that stops for ever in the operation of that number, before a name changes or
    with half of a growth on the disk, as when its node loses power.

    Returns whether it stopped: a call that does less, or raises before, ends by itself. TimeoutError when
    neither happens in `seconds`.
    """
    over, stopped = threading.Event(), threading.Event()

    def on_operation(number: int, grown: Grown) -> None:
        if number == operation:
            for path, before, now in grown:
                os.truncate(path, (before + now) // 2)
            stopped.set()
            over.set()
            threading.Event().wait()

    def run() -> None:
        sys.setprofile(Operations(folder, of_names, on_operation))
        try:
            with contextlib.suppress(Exception):
                call()
        finally:
            sys.setprofile(None)
            over.set()

    threading.Thread(target=run, daemon=True).start()
    if not over.wait(seconds):
        raise TimeoutError(f"expected save_shards to write or to end within {seconds} seconds")
    return stopped.is_set()
