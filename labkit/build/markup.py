"""Reads a lesson's source: a Jupytext percent file whose cells carry a few short options.

The markup is described in solutions/README.md. Reading keeps the line each cell starts on, so that every
complaint about a lesson names its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

OPTIONS: dict[str, type] = {
    "exercise": str,
    "difficulty": int,
    "minutes": int,
    "check": str,
    "scoreboard": bool,
    "predict": str,
    "reveals": str,
    "tags": list,
}
_FORMS = '`# %%`, `# %% [markdown]`, or options as in `# %% exercise="06.row-parallel-linear" minutes=15`'
_EXAMPLES = {
    str: 'a text in quotes, "so"',
    int: "a whole number",
    bool: "true or false",
    list: 'a list, ["so"]',
}
# What jupytext makes of words that it cannot read as options: a title, or an option that holds them all.
_NOT_UNDERSTOOD = {"title", "incorrectly_encoded_metadata", "cell_depth", "region_name"}
_CELL_MARK = re.compile(r"^\s*#\s*%%%*(\s|$)")


class LessonError(Exception):
    """Something in a lesson's source is wrong. The message starts with `file:line`."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path, self.line, self.problem = path, line, problem


@dataclass(frozen=True)
class Cell:
    """One cell of a lesson as its author wrote it."""

    kind: Literal["markdown", "code"]
    source: str
    line: int  # of the cell's `# %%` mark, counted from 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lesson:
    """A lesson's source: what its front matter says, and its cells in order."""

    path: Path
    number: str
    title: str
    minutes: int
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The assignment's name everywhere: `06_tensor_parallel_ffn`."""
        return self.path.stem

    def error(self, cell: Cell, problem: str) -> LessonError:
        """A complaint about `cell`, to be raised."""
        return LessonError(self.path, cell.line, problem)


def read_lesson(path: Path) -> Lesson:
    """Read one `solutions/NN_name.py`. Raises LessonError when the file does not follow the markup."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors begin it with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise LessonError(path, 1, f"cannot be read as UTF-8 text: {error}") from error
    raw_cells = _raw_cells(path, text)
    header = _front_matter(path, raw_cells)
    lines = text.splitlines()
    marks = [number for number, line in enumerate(lines, 1) if _CELL_MARK.match(line)]
    body = raw_cells[2 if _has_notes(lines[: marks[0] - 1] if marks else lines) else 1 :]
    if len(body) != len(marks):
        raise LessonError(path, 1, "a line inside a string or a fenced block looks like a cell mark ('# %%')")
    cells = tuple(_cell(path, line, lines[line - 1], raw) for line, raw in zip(marks, body, strict=True))
    return Lesson(path=path, cells=cells, **header)


def _raw_cells(path: Path, text: str) -> list[Any]:
    """The cells as Jupytext reads them. Where metadata has other types than it expects, it fails without
    saying so: LessonError tells the file, and what it said.
    """
    import jupytext

    try:
        return list(jupytext.reads(text, fmt="py:percent").cells)
    except Exception as error:
        wrong = "Jupytext cannot read a value in the header or of a cell's option, as in tags=[3]"
        raise LessonError(path, 1, f"{wrong}: {error}") from error


def _has_notes(lines_above_first_cell: list[str]) -> bool:
    """Whether the author wrote notes between the front matter and the first cell."""
    rules = [number for number, line in enumerate(lines_above_first_cell) if line.strip() == "# ---"]
    return any(line.strip(" #") for line in lines_above_first_cell[rules[1] + 1 :])


def _front_matter(path: Path, raw_cells: list[Any]) -> dict[str, Any]:
    """What `lesson: {number: "06", title: "...", minutes: 90}` in the header says."""
    import yaml

    form = 'lesson: {number: "06", title: "...", minutes: 90}'
    if not raw_cells or raw_cells[0].cell_type != "raw":
        raise LessonError(path, 1, f"expected a Jupytext header (# --- ... # ---) with `{form}`")
    try:
        header = yaml.safe_load(raw_cells[0].source.strip().strip("-"))
    except yaml.YAMLError as error:
        raise LessonError(path, 1, f"the header is not YAML, expected `{form}` in it: {error}") from error
    lesson = header.get("lesson") if isinstance(header, dict) else header
    wanted = {"number": str, "title": str, "minutes": int}
    if not isinstance(lesson, dict) or {key: type(value) for key, value in lesson.items()} != wanted:
        raise LessonError(path, 1, f"expected `{form}` in the header, found {lesson!r}")
    return lesson


def _cell(path: Path, line: int, mark: str, raw: Any) -> Cell:
    """mark: the cell's first line as its author wrote it."""
    options = {key: value for key, value in raw.metadata.items() if key != "lines_to_next_cell"}
    if raw.cell_type not in ("markdown", "code"):
        raise LessonError(path, line, f"expected a code or [markdown] cell, found [{raw.cell_type}]")
    if options.keys() & _NOT_UNDERSTOOD:
        raise LessonError(path, line, f"expected {_FORMS}; found `{mark.strip()}`")
    for name, value in options.items():
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise LessonError(path, line, f"unknown cell option {name!r}; the options are {known}")
        if type(value) is not OPTIONS[name]:
            raise LessonError(path, line, f"expected {name}= {_EXAMPLES[OPTIONS[name]]}; found {value!r}")
    return Cell(kind=raw.cell_type, source=raw.source, line=line, options=options)
