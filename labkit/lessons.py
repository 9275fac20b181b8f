"""The lessons that come with labkit, and a folder of one's own to work on them in."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from labkit.whole_file import write_whole

HERE = Path(__file__).resolve().parent
INSTALLED, CHECKED_OUT = HERE / "released", HERE.parent / "notebooks"
"""Where they are: in an installed wheel, and in the repository."""


@dataclass(frozen=True)
class Laid:
    """What laying out the lessons did: files it wrote, and files that were there and are as before."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def released() -> Path:
    """The folder with the lessons as released. LookupError where labkit is without them."""
    for folder in (INSTALLED, CHECKED_OUT):
        if folder.is_dir():
            return folder
    places = f"{INSTALLED} or {CHECKED_OUT}"
    raise LookupError(f"no lessons: expected them in {places}; install the wheel again")


def lay_out(folder: Path) -> Laid:
    """Copy the lessons into `folder`. A file that is there is somebody's work, and is kept."""
    source, written, kept = released(), [], []
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".ipynb", ".md") or ".ipynb_checkpoints" in path.parts:
            continue
        target = folder / path.relative_to(source)
        if target.exists():
            kept.append(target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, path.read_bytes())  # half of one would be kept as somebody's work
            written.append(target)
    return Laid(tuple(written), tuple(kept))


def folder_to_open() -> Path:
    """What `labkit lab` opens when it is not told: the repository's notebooks, or `lessons` in this folder.

    The latter is written when it is not there, as a whole or not at all.
    """
    if CHECKED_OUT.is_dir():
        return CHECKED_OUT
    mine = Path("lessons")
    if not mine.exists():
        unfinished = Path(f".lessons.{os.getpid()}.part")
        try:
            lay_out(unfinished)
            unfinished.rename(mine)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return mine
