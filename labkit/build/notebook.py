"""Turns a lesson into the instructor's notebook: solutions in place, cells marked up as nbgrader wants."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.build.markup import Cell, Lesson
from labkit.checks.exercise import Exercise
from labkit.checks.hidden import rules
from labkit.checks.source.notebook import grade_id

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_GRADED_CELLS = (
    "### Points\nOne locked cell for each property. Grading fills them in; you need not look at them."
)
FOLDED = {"source_hidden": True}  # JupyterLab shows the first line, and the rest when asked
_REVEALS = "# The answer to your guess: run this cell once you have written one\n"
_REVEALED_TEXT = "<details><summary>Once you have guessed</summary>\n\n{}\n\n</details>"
_DOTTED = re.compile(r"\w+(?:\.\w+)+")
_LONGEST_ID = 64  # of a cell, by the notebook format


def source_notebook(lesson: Lesson, exercises: Sequence[Exercise]) -> NotebookNode:
    """The instructor's notebook of a lesson that `rules.check_lesson` accepted; the same bytes every time."""
    known = {exercise.id: exercise for exercise in exercises}
    cells = [made for cell in _framed(lesson, known) for made in _cells(cell, exercises)]
    for cell, identity in zip(cells, _cell_ids(cells), strict=True):
        cell.id = identity
    about = {"lesson": lesson.number, "title": lesson.title, "minutes": lesson.minutes}
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}, "labkit": about}
    notebook = new_notebook(cells=cells, metadata=metadata)
    notebook.nbformat_minor = 5
    nbformat.validate(notebook)
    return notebook


def _framed(lesson: Lesson, known: dict[str, Exercise]) -> list[Cell]:
    """The lesson's cells, with each exercise's facts written under the heading that announces it.

    The heading is the last `### Exercise...` line of the nearest text cell before the exercise that has one.
    """
    cells = list(lesson.cells)
    for index, cell in enumerate(lesson.cells):
        if "exercise" not in cell.options:
            continue
        for before in range(index - 1, -1, -1):
            if "exercise" in cells[before].options:
                break
            heading = re.search(r"^#+ Exercise.*$", cells[before].source, re.MULTILINE)
            if cells[before].kind == "markdown" and heading:
                source, end = cells[before].source, heading.end()
                exercise = known[cell.options["exercise"]]
                below = _above_hints(source[end:].lstrip("\n"), rules(exercise, known.values()))
                source = f"{source[:end]}\n{_worth(cell, exercise)}\n\n{below}"
                cells[before] = replace(cells[before], source=source)
                break
    return cells


def _worth(cell: Cell, exercise: Exercise) -> str:
    """How hard the exercise is, how long it takes, and how many points it has."""
    difficulty = cell.options["difficulty"]
    dots = "●" * difficulty + "○" * (5 - difficulty)
    return (
        f"*`{exercise.id}` · difficulty {dots} · about {cell.options['minutes']} minutes"
        f" · {exercise.max_points} points*"
    )


def _above_hints(text: str, forbidden: str) -> str:
    """An exercise's text with what may not be used, folded, above its first hint, or at its end."""
    if not forbidden:
        return text
    names_as_code = _DOTTED.sub(r"`\g<0>`", forbidden)
    folded = f"<details><summary>What may not be used</summary>\n\n{names_as_code}\n\n</details>"
    hints = text.find("<details")
    return f"{text[:hints]}{folded}\n{text[hints:]}" if hints >= 0 else f"{text.rstrip()}\n\n{folded}"


def _cells(cell: Cell, exercises: Sequence[Exercise]) -> Iterator[NotebookNode]:
    """The notebook's cells for one cell of the lesson: one, and after the scoreboard the graded ones."""
    if cell.kind == "markdown":
        text = _REVEALED_TEXT.format(cell.source) if "reveals" in cell.options else cell.source
        yield new_markdown_cell(text, metadata=_metadata(cell))
        return
    first_line = _REVEALS if "reveals" in cell.options else ""
    made = new_code_cell(first_line + cell.source, metadata=_metadata(cell))
    if "exercise" in cell.options:
        made.metadata.nbgrader = _nbgrader(grade_id(cell.options["exercise"]), solution=True)
        made.metadata.labkit = {"exercise": cell.options["exercise"]}
    if "check" in cell.options:
        made.metadata.nbgrader = _nbgrader("check_" + grade_id(cell.options["check"]), locked=True)
        made.metadata.labkit = {"check": cell.options["check"]}
    yield made
    if cell.options.get("scoreboard"):
        # Folded together with all that follows it, which is why the scoreboard is a lesson's last cell.
        yield new_markdown_cell(_GRADED_CELLS, metadata={"jp-MarkdownHeadingCollapsed": True})
        for exercise in exercises:
            for prop in exercise.properties:
                yield _graded_cell(exercise, prop.name, prop.points)


def _metadata(cell: Cell) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if cell.options.get("tags"):
        metadata["tags"] = list(cell.options["tags"])
    if "setup" in cell.options.get("tags", ()) or (cell.kind == "code" and "reveals" in cell.options):
        metadata["jupyter"] = dict(FOLDED)
    if "predict" in cell.options:
        metadata["labkit"] = {"predict": cell.options["predict"]}
    if "reveals" in cell.options:
        metadata["labkit"] = {"reveals": cell.options["reveals"]}
    return metadata


def _graded_cell(exercise: Exercise, property_name: str, points: int) -> NotebookNode:
    """The locked cell nbgrader keeps one property's points on; its source is folded away."""
    made = new_code_cell(f'labkit.score("{exercise.id}", "{property_name}")')
    made.metadata.jupyter = dict(FOLDED)
    made.metadata.nbgrader = _nbgrader(grade_id(exercise.id, property_name), locked=True, points=points)
    return made


def _nbgrader(
    name: str, *, solution: bool = False, locked: bool = False, points: int | None = None
) -> dict[str, Any]:
    """nbgrader's cell metadata (schema 3). A cell with points is a graded one."""
    marks = {"grade": points is not None, "grade_id": name, "locked": locked, "schema_version": 3}
    return {**marks, **({} if points is None else {"points": points}), "solution": solution, "task": False}


def _cell_ids(cells: Sequence[NotebookNode]) -> Iterator[str]:
    """An id for each cell that stays the same while its neighbours change: its name, or how it begins."""
    taken: set[str] = set()
    for cell in cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id") or _slug(cell)
        if len(name) > _LONGEST_ID - 4:
            name = name[: _LONGEST_ID - 13] + "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
        numbered = (name if count == 1 else f"{name}-{count}" for count in itertools.count(1))
        identity = next(candidate for candidate in numbered if candidate not in taken)
        taken.add(identity)
        yield identity


def _slug(cell: NotebookNode) -> str:
    """The first words: of a text cell's first line, or of the code."""
    text = cell.source.lower()
    beginning = text.partition("\n")[0] if cell.cell_type == "markdown" else text[:200]
    return "-".join(re.findall("[a-z0-9]+", beginning))[:40].strip("-") or "cell"
