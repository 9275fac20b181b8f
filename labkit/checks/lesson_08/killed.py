"""A rank that is killed while it writes a file, as the others and the disk see it: a thread that stops for
ever in the middle of a file and runs nothing more, no `except` and no `finally`. Its process lives on, to
report.
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


class Growths:
    """A thread's profile function that notices, after each call the thread makes, when files have grown.

    on_growth: called with how often they have, and which did. A file that is renamed has not grown.
    """

    def __init__(self, folder: Path, on_growth: Callable[[int, Grown], None]):
        self.folder, self.on_growth = folder, on_growth
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
        if grown:
            self.count += 1
            self.on_growth(self.count, grown)


def sizes(folder: Path) -> Sizes:
    """The files below a folder."""
    found: Sizes = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[path.stat().st_ino] = (path, path.stat().st_size)
    return found


def count_growths(folder: Path, call: Callable[[], None]) -> int:
    """How often files of a folder grow while `call` runs in this thread."""
    growths = Growths(folder, lambda count, grown: None)
    sys.setprofile(growths)
    try:
        call()
    finally:
        sys.setprofile(None)
    return growths.count


def stop_while_writing(folder: Path, growth: int, call: Callable[[], None], seconds: float) -> bool:
    """Run `call` in a thread that stops for ever in the growth of that number, half of it on the disk, as
    when its node loses power.

    Returns whether it stopped: a call that writes less often, or raises before, ends by itself. TimeoutError
    when neither happens in `seconds`.
    """
    over, stopped = threading.Event(), threading.Event()

    def on_growth(count: int, grown: Grown) -> None:
        if count == growth:
            for path, before, now in grown:
                os.truncate(path, (before + now) // 2)
            stopped.set()
            over.set()
            threading.Event().wait()

    def run() -> None:
        sys.setprofile(Growths(folder, on_growth))
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
