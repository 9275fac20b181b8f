"""Where lesson 08's checks write checkpoints: every rank has a disk of its own until all have saved."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from labkit.checks.rank import Rank

SECOND = 10**9  # nanoseconds
LONG_AGO = SECOND  # when nothing is written


@contextlib.contextmanager
def own_disk() -> Iterator[Path]:
    """A folder that only this rank sees, as where work is graded; gone at the end. Its path, relative to
    where the rank works meanwhile, is the same on every rank: that of a folder they share would be too.
    """
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as name, contextlib.chdir(name):
        folder = Path("checkpoints")
        folder.mkdir()
        yield folder


@contextlib.contextmanager
def watching_temporary_files(rank: Rank, folder: Path) -> Iterator[None]:
    """Fact: temporary, whether a file was made, inside, where Python makes temporary ones."""
    place, before = folder.parent.resolve() / "temporary", tempfile.tempdir
    place.mkdir()
    os.utime(place, ns=(LONG_AGO, LONG_AGO))
    tempfile.tempdir = str(place)
    try:
        yield
    finally:
        tempfile.tempdir = before
    rank.fact("temporary", place.stat().st_mtime_ns != LONG_AGO)


def header_of_safetensors(path: Path) -> int | None:
    """Bytes before the tensors of a file of safetensors: it begins with the length of its header, in 8 bytes,
    and the header is a dict. None of any other file.
    """
    with path.open("rb") as file:
        head = file.read(9)
    header = 8 + int.from_bytes(head[:8], "little")
    return header if head[8:] == b"{" and header <= path.stat().st_size else None


def exchange_files(folder: Path, group: dist.ProcessGroup) -> None:
    """Every rank ends with the files of all: this stands for the disk that they share."""
    own = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, own, group=group)
    for files in everyones:
        for name, content in files.items():
            path = folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    _turn_times_round(folder)
    dist.barrier(group)


def _turn_times_round(folder: Path) -> None:
    """What was written first has the latest time, as files that were copied have times of their own."""
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda path: path.stat().st_mtime_ns)
    latest = max((path.stat().st_mtime_ns for path in files), default=0)
    for number, path in enumerate(files):
        os.utime(path, ns=(latest - number * SECOND, latest - number * SECOND))


@contextlib.contextmanager
def files_of_all(folder: Path, group: dist.ProcessGroup) -> Iterator[None]:
    """Inside, the folder holds the files of all ranks; afterwards this rank's own again, as they were."""
    own = folder.with_name("meanwhile")
    shutil.copytree(folder, own)
    exchange_files(folder, group)
    yield
    shutil.rmtree(folder)
    own.rename(folder)
