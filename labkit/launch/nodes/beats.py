"""Signs of life of the nodes, in files that all see.

Slurm waits minutes (SlurmdTimeout) before it calls a node down, and so does TCP when the other one has lost
its network. The agents of the nodes notice that of each other, but not of the node that has their store.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_BEAT_EVERY = 1.0  # seconds
_LOOK_EVERY = 2.0
_LOST_AFTER = 20.0  # seconds without a beat after which a node is given up


def beat_path(directory: Path, number: int) -> Path:
    """Where one node counts its beats."""
    return directory / f"node{number}.beat"


class Beat:
    """The node's side."""

    def __init__(self, directory: Path, number: int) -> None:
        self._path, self._count, self._next = beat_path(directory, number), 0, 0.0

    def go_on(self) -> None:
        """Beat, if it is time to. A full disk ends nothing."""
        if (now := time.monotonic()) > self._next:
            self._next, self._count = now + _BEAT_EVERY, self._count + 1
            with contextlib.suppress(OSError), open(self._path, "r+b") as file:
                os.pwrite(file.fileno(), b"%d" % self._count, 0)


class Silence:
    """The notebook's side: which nodes have not been heard of for long, while another was."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self._paths = [beat_path(directory, number) for number in range(nodes)]
        self._heard = [b""] * nodes
        self._quiet = [0.0] * nodes
        self._looked = 0.0

    def look(self) -> list[int]:
        """The numbers of the silent nodes."""
        now = time.monotonic()
        if now > self._looked + _LOOK_EVERY:
            # Only time in which we looked counts: a notebook that was suspended finds all nodes quiet.
            passed, self._looked = min(now - self._looked, 2 * _LOOK_EVERY), now
            heard = [_read(path) for path in self._paths]
            new = [one != before for one, before in zip(heard, self._heard, strict=True)]
            if any(new):  # otherwise it is the file system that stands still
                waiting = [bool(one) and not changed for one, changed in zip(heard, new, strict=True)]
                self._quiet = [
                    (quiet + passed) * still for quiet, still in zip(self._quiet, waiting, strict=True)
                ]
            self._heard = heard
        return [number for number, quiet in enumerate(self._quiet) if quiet > _LOST_AFTER]


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
