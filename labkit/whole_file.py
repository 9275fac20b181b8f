"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is either as it was before or whole for whoever reads it, also if this process is
    killed. Where it cannot be written (a full disk), OSError says so and nothing is left.
    """
    unfinished = path.with_name(f".{path.name}.{threading.get_native_id()}.part")  # threads may write at once
    try:
        unfinished.write_bytes(data)
        unfinished.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def on_disk(path: str | Path) -> None:
    """Return when the bytes of a written file are on the disk: then a power failure cannot take them."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())
