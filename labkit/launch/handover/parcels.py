"""Large parts of a message, such as tensors: on one machine they go through a file that all ranks map."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import PickleBuffer

SMALLEST = 64 << 10  # bytes of a part that goes apart from the rest
_ALIGNMENT = 64


@dataclass(frozen=True)
class Parcel:
    """Parts of a message: in a file, at these offsets and of these sizes; or as they are."""

    file: str
    places: list[tuple[int, int]]
    parts: list[bytearray]

    def open(self) -> Sequence[memoryview | bytearray]:
        """The parts, as memory of this process's own."""
        if not self.file:
            return self.parts
        with open(self.file, "rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return [whole[start : start + size] for start, size in self.places]

    def remove(self) -> None:
        """Everybody has taken it."""
        if self.file:
            with contextlib.suppress(OSError):
                os.unlink(self.file)


def parcel(buffers: Sequence[PickleBuffer], directory: Path | None) -> Parcel:
    """The buffers as they are now: in a file of this directory, or in memory where that has no room."""
    views = [buffer.raw() for buffer in buffers]
    if directory is not None and views:
        with contextlib.suppress(OSError):
            return _written(views, directory)
    return Parcel("", [], [bytearray(view) for view in views])


def _written(views: Sequence[memoryview], directory: Path) -> Parcel:
    rooms = (-(-view.nbytes // _ALIGNMENT) * _ALIGNMENT for view in views)
    starts = itertools.accumulate(rooms, initial=0)
    places = [(start, view.nbytes) for start, view in zip(starts, views, strict=False)]
    number = next(n for n in itertools.count() if not (directory / f"parcel{n}").exists())
    path = directory / f"parcel{number}"
    try:
        with open(path, "xb", buffering=0) as file:
            for (start, _), view in zip(places, views, strict=True):
                file.seek(start)
                while view:
                    view = view[file.write(view) :]
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return Parcel(str(path), places, [])
