"""Reads a submitted notebook as data, whatever is in the file."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.checks.exercise import Exercise
from labkit.checks.source.notebook import LARGEST_NOTEBOOK, BadNotebook, cells_of, why_unreadable
from labkit.checks.source.submission import Cell
from labkit.checks.source.text import visible

LONGEST_NAME = 30  # of those that students choose for a ranking
_LOOKED_AT = 10 * LONGEST_NAME  # characters of such a name, with the spaces in it
_SETS_NAME = re.compile(r"""^ranking_name[ \t]*=[ \t]*(["'])([^"'\\\n]*)\1[ \t]*(?:#.*)?$""", re.MULTILINE)
NO_FILE = (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO)  # it is a link, nothing or a socket
MOST_VALUES = 5_000_000  # in a notebook's JSON: one list takes thirty times the bytes that it is written in
MOST_NESTED = 100  # lists and objects within one another; what a library puts into an output has some twenty
_AT_ONCE = 2**20  # bytes
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))  # than what strings, lists and objects begin and end with
_STEP = np.zeros(256, np.int8)  # of the depth, by a byte outside strings
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1


@dataclass(frozen=True)
class Notebook:
    """A submitted notebook: its JSON object, and its code cells as practice reads them too."""

    raw: dict[str, Any]
    cells: list[Cell]


def read_bytes(path: Path, most: int = LARGEST_NOTEBOOK) -> bytes:
    """A regular file's bytes; links are not followed. BadNotebook says what it is instead; OSError where it
    may well be one and this machine cannot read it now.
    """
    name = visible(path.name)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise BadNotebook(f"{name} cannot be read: {reason}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadNotebook(f"{name} is not a regular file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        size = f"{most // 2**20} MiB" if most >= 2**20 else f"{most} bytes"
        less = "clear its outputs" if path.suffix == ".ipynb" else "make it shorter"
        raise BadNotebook(f"{name} has more than {size}; {less} and submit again")
    return data


def read_notebook(path: Path) -> Notebook:
    """The notebook at `path`. BadNotebook when it is not one."""
    return parse_notebook(read_bytes(path), visible(path.name))


def parse_notebook(data: bytes, name: str = "the notebook") -> Notebook:
    """A notebook from its bytes."""
    if why := why_unreadable(data):  # first: brackets in a zip mean nothing
        raise BadNotebook(f"{name} is not a notebook: {why}, and submit again")
    if (values := sum(map(data.count, (b",", b"[", b"{")))) > MOST_VALUES:
        raise BadNotebook(f"{name} has {values} values in its JSON; at most {MOST_VALUES} are read")
    if (depth := depth_of(data)) > MOST_NESTED:
        raise BadNotebook(
            f"{name} is not a notebook that is read: lists and objects of its JSON lie {depth} deep in one "
            f"another, at most {MOST_NESTED} may; clear its outputs, take away what else was put into its "
            "file, and submit again"
        )
    try:
        raw = json.loads(data.decode("utf-8-sig"))
    except (ValueError, MemoryError) as error:
        no_text = isinstance(error, UnicodeDecodeError)
        found = "its text is not UTF-8" if no_text else "its JSON cannot be read"
        raise BadNotebook(
            f"{name} is not a notebook: {found} ({str(error)[:200]}); open it in JupyterLab, save it, and "
            "submit again"
        ) from None
    if isinstance(raw, dict) and "worksheets" in raw and "cells" not in raw:
        raise BadNotebook(
            f"{name} is not a notebook of today's format, but of the one before 2015: open it in JupyterLab, "
            "save it, and submit again"
        )
    return Notebook(raw, cells_of(raw, name))


def depth_of(data: bytes) -> int:
    """How deep lists and objects lie in one another in this JSON, whatever is wrong further on. Counted, not
    parsed: how deep a parser gets depends on who called it.
    """
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")  # each quotation mark left begins or ends a string
    bare = bare.translate(None, _OTHERS).replace(b'""', b"")
    within, depth, deepest = False, 0, 0
    for start in range(0, len(bare), _AT_ONCE):
        part = np.frombuffer(bare[start : start + _AT_ONCE], np.uint8)
        strings = np.logical_xor.accumulate(part == ord('"')) ^ within
        depths = depth + np.cumsum(_STEP[part] * ~strings, dtype=np.int32)
        within, depth, deepest = bool(strings[-1]), int(depths[-1]), max(deepest, int(depths.max()))
    return deepest


def places_of(cells: Sequence[Cell], exercises: Sequence[Exercise]) -> dict[str, int]:
    """For each exercise the last cell that defines one of its names: its number in the notebook, from 0."""
    found: dict[str, int] = {}
    for cell in cells:
        defined = {name for statement in cell.read().statements for name in statement.defines}
        found.update({exercise.id: cell.place - 1 for exercise in exercises if defined & set(exercise.names)})
    return found


def collected_from(cells: Iterable[Cell]) -> list[int]:
    """The cells that hold definitions: their numbers in the notebook, from 0."""
    return [cell.place - 1 for cell in cells if cell.read().statements]


def chosen_name(cells: Iterable[Cell]) -> str:
    """What the notebook last sets `ranking_name` to; "" where it sets nothing. Found in the text, which is
    not parsed: it may be hostile.
    """
    chosen = ""
    for found in (found for cell in cells for found in _SETS_NAME.finditer(cell.source)):
        chosen = found.string[found.start(2) : min(found.end(2), found.start(2) + _LOOKED_AT)]
    return " ".join(visible(chosen).split())[:LONGEST_NAME]
