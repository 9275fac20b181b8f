"""Finds a student's code cells: in a saved notebook, in the running kernel, or in a module's file."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell, Submission, collect

LARGEST_NOTEBOOK = 64 * 2**20  # bytes
MOST_CELLS = 5000
HIGHEST_COUNT = 10**6
_ZIP = b"PK\x03\x04"  # how every zip with something in it begins


class BadNotebook(Exception):
    """The file cannot be read as a notebook; the message says what is wrong with it."""


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook file, in order. BadNotebook says why it cannot be read."""
    try:
        size = path.stat().st_size
        if not path.is_file() or size > LARGEST_NOTEBOOK:
            raise BadNotebook(
                f"{path.name}: expected a file of at most {LARGEST_NOTEBOOK} bytes, found {size}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise BadNotebook(f"{path.name} cannot be opened: {error.strerror}") from None
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        told = why_unreadable(data) or f"its JSON cannot be read ({error})"
        raise BadNotebook(f"{path.name} is not a notebook: {told}") from None
    return cells_of(notebook, path.name)


def why_unreadable(data: bytes) -> str:
    """What happened to a file that is no JSON, and what to do; "" where its bytes do not tell."""
    if not data.strip():
        return "the file is empty; copy it again, or save it again in JupyterLab"
    if data.startswith(_ZIP):
        return "it is a zip; take the notebook out of it"
    if data.lstrip().startswith(b"{") and not data.rstrip().endswith(b"}"):
        return "it is cut off; copy it again, or save it again in JupyterLab"
    return ""


def cells_of(notebook: Any, name: str = "the notebook") -> list[Cell]:
    """The code cells of a notebook's JSON. A cell that is not one is skipped; nothing else in it is
    trusted.
    """
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or len(cells) > MOST_CELLS:
        raise BadNotebook(f"{name} is not a notebook: expected a list of at most {MOST_CELLS} cells")
    code = [(i, c) for i, c in enumerate(cells, 1) if isinstance(c, dict) and c.get("cell_type") == "code"]
    counts = Counter(_executed(cell) for _, cell in code)
    return [
        Cell(
            _called(i, _executed(cell), counts),
            _text(cell.get("source")),
            _named_exercise(cell.get("metadata")),
            place=i,
        )
        for i, cell in code
    ]


def cells_of_history(inputs: list[str]) -> list[Cell]:
    """The cells a kernel has executed, as they were typed, which is what is saved and graded."""
    return [Cell(label_of(i), source) for i, source in enumerate(inputs) if source.strip()]


def label_of(count: int) -> str:
    """A cell by the number that JupyterLab shows beside it."""
    return f"cell In [{count}]"


def names_of_notebook() -> Mapping[str, Any] | None:
    """What the names of the running notebook stand for; None outside one."""
    shell = _shell()
    return None if shell is None else shell.user_ns


def live_cells(made: object) -> list[Cell]:
    """The source around what the caller defined: the kernel's history in a notebook, whatever that was made
    of, as nothing else is handed in; otherwise its file. BadNotebook where it has none.
    """
    shell = _shell()
    if shell is not None:
        return cells_of_history(list(shell.history_manager.input_hist_raw))
    try:
        path = inspect.getsourcefile(made)  # type: ignore[arg-type]
    except TypeError:  # a partial function, or one in C
        path = None
    if path is None:
        raise BadNotebook(
            f"the source of {made!r} is not to be found; pass a class or function defined in a cell"
        )
    return [Cell(Path(path).name, Path(path).read_text(encoding="utf-8"))]


def collect_exercise(cells: list[Cell], exercise: Exercise) -> Submission:
    """What the cells hold for one exercise, with the student's own versions of earlier exercises."""
    return collect(cells, exercise.id, exercise.names, earlier_names(exercise))


def earlier_names(exercise: Exercise) -> list[str]:
    """What the exercises define that this one builds on."""
    return [name for earlier in exercise.builds_on for name in registry.exercise(earlier).names]


def grade_id(exercise_id: str, property_name: str = "") -> str:
    """The nbgrader id of an exercise's solution cell, or of the graded cell of one of its properties."""
    parts = [exercise_id, property_name] if property_name else [exercise_id]
    return "__".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in parts)


def _named_exercise(metadata: object) -> str | None:
    """The exercise id in a solution cell's metadata: `06_row-parallel-linear` names
    `06.row-parallel-linear`.
    """
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = nbgrader.get("grade_id") if isinstance(nbgrader, dict) and nbgrader.get("solution") else None
    match = re.fullmatch(r"(\d\d)_([a-z0-9-]+)", name) if isinstance(name, str) else None
    return f"{match[1]}.{match[2]}" if match else None


def _executed(cell: dict[str, Any]) -> int:
    """The number JupyterLab shows beside a cell that was run; 0 beside one that was not."""
    count = cell.get("execution_count")
    return count if type(count) is int and 0 < count < HIGHEST_COUNT else 0


def _called(place: int, count: int, counts: Counter[int]) -> str:
    """A cell by the number shown beside it; one without, or with another's, by its place in the notebook."""
    return label_of(count) if count and counts[count] == 1 else f"cell {place}"


def _text(source: object) -> str:
    parts = source if isinstance(source, list) else [source]
    return "".join(part for part in parts if isinstance(part, str))


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    find: Callable[[], Any] = get_ipython
    return find()
