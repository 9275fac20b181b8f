"""Puts a submitted notebook back into the shape nbgrader needs, whatever was done to its cells.

Nothing in a submission's metadata is kept. Exercise cells were found by what they define; graded cells are
laid down anew from the gradebook, so their points are right even when a student deleted, copied or edited
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.utils import compute_checksum

from autograder.gradebook.sanitise import images_of
from labkit.checks.source.notebook import MOST_CELLS, grade_id
from labkit.checks.source.statements import LARGEST_CELL

LONGEST_SOURCE = LARGEST_CELL  # no longer one is collected from
MOST_TEXT = 2_000_000  # characters of all cells together
MOST_IMAGES = 32 * 2**20  # characters of base64 in all cells together
LEFT_OUT = "*This submission is too long to be shown: of what follows only cells with definitions are here.*"
_SCORE = re.compile(r'labkit\.score\("[\w.-]+", "[\w.-]+"\)')  # the whole of a graded cell in the release


def rebuilt(
    raw: Mapping[str, Any],
    places: Mapping[str, int],
    graded_cells: Sequence[NotebookNode],
    collected: Collection[int] = (),
) -> NotebookNode:
    """The student's cells without outputs or metadata, exercise cells marked, then the gradebook's graded
    cells.

    places: exercise id -> which of the submission's cells has the answer, as it was found when it was read.
    collected: the cells that definitions were collected from. Each is there whole, whatever else has to be
    left out: nothing is graded that a person does not see.
    """
    whole = {*places.values(), *collected}
    plain = {number: cell for number, one in enumerate(_listed(raw)) if (cell := _plain(one)) is not None}
    for exercise_id, number in places.items():
        if number in plain and "nbgrader" not in plain[number].metadata:
            mark_solution(plain[number], grade_id(exercise_id))
    plain = {n: cell for n, cell in plain.items() if n in whole or not is_score(cell.source)}
    cells = _within_limits(plain, whole)
    cells += graded_cells
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return new_notebook(cells=cells, metadata={"kernelspec": _KERNEL, "language_info": {"name": "python"}})


def placeholder(why: str, graded_cells: Sequence[NotebookNode]) -> NotebookNode:
    """What stands for a submission that is not a notebook: one sentence, and the graded cells."""
    return rebuilt(
        {"cells": [{"cell_type": "markdown", "source": f"**This submission could not be read.** {why}"}]},
        {},
        graded_cells,
    )


def mark_solution(cell: NotebookNode, name: str) -> None:
    """nbgrader's metadata of a cell the student writes in."""
    cell.metadata["nbgrader"] = {
        "grade": False,
        "grade_id": name,
        "locked": False,
        "schema_version": 3,
        "solution": True,
        "task": False,
    }


def graded_cell(name: str, points: float, source: str) -> NotebookNode:
    """A graded cell as the gradebook knows it."""
    cell = new_code_cell(source)
    cell.metadata["nbgrader"] = {
        "grade": True,
        "grade_id": name,
        "locked": True,
        "schema_version": 3,
        "solution": False,
        "task": False,
        "points": points,
        "cell_type": "code",
    }
    cell.metadata["nbgrader"]["checksum"] = compute_checksum(cell)
    return cell


def is_score(source: str) -> bool:
    """Whether this is a graded cell of the release, or a copy of one."""
    return _SCORE.fullmatch(source.strip()) is not None


def _listed(raw: Mapping[str, Any]) -> list[Any]:
    found = raw.get("cells")
    return found[:MOST_CELLS] if isinstance(found, list) else []


def _plain(cell: Any) -> NotebookNode | None:
    if not isinstance(cell, dict):
        return None
    text = _start_of(cell.get("source")).encode("utf-8", "replace").decode()
    if cell.get("cell_type") == "code":
        return new_code_cell(text)
    pictures = images_of(cell.get("attachments"))
    return new_markdown_cell(text, attachments=pictures) if pictures else new_markdown_cell(text)


def _start_of(source: Any) -> str:
    """The first LONGEST_SOURCE characters of a cell's source, which is one text, or a list of them."""
    found, left = [], LONGEST_SOURCE
    for part in source if isinstance(source, list) else [source]:
        if isinstance(part, str) and left:
            found.append(part[:left])
            left -= len(found[-1])
    return "".join(found)


def _within_limits(cells: Mapping[int, NotebookNode], whole: Collection[int]) -> list[NotebookNode]:
    """The cells of `whole`, and of the others those above the first for which no room is left beside these;
    pictures until they are too large together.
    """
    kept: list[NotebookNode] = []
    left = MOST_TEXT - sum(len(cell.source) for number, cell in cells.items() if number in whole)
    images, is_cut = 0, False
    for number, cell in cells.items():
        if number not in whole:
            left -= len(cell.source)
            if left < 0:
                kept += [] if is_cut else [new_markdown_cell(LEFT_OUT)]
                is_cut = True
                continue
        images += _size_of(cell.get("attachments", {}).values())
        if images > MOST_IMAGES:
            cell.pop("attachments", None)
        kept.append(cell)
    return kept


def _size_of(attachments: Iterable[Mapping[str, str]]) -> int:
    return sum(len(data) for kinds in attachments for data in kinds.values())


_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
