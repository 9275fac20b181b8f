"""Puts a submitted notebook back into the shape nbgrader needs, whatever was done to its cells.

Nothing in a submission's metadata is kept. Exercise cells were found by what they define; graded cells are
laid down anew from the gradebook, so their points are right even when a student deleted, copied or edited
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.utils import compute_checksum

from autograder.gradebook.sanitise import images_of
from labkit.checks.source.notebook import MOST_CELLS, grade_id

LONGEST_SOURCE = 200_000
MOST_TEXT = 2_000_000  # characters of all cells together
MOST_IMAGES = 32 * 2**20  # characters of base64 in all cells together


def rebuilt(
    raw: Mapping[str, Any], places: Mapping[str, int], graded_cells: Sequence[NotebookNode]
) -> NotebookNode:
    """The student's cells without outputs or metadata, exercise cells marked, then the gradebook's graded
    cells.

    places: exercise id -> which of the submission's cells has the answer, as it was found when it was read.
    """
    plain = {number: cell for number, one in enumerate(_listed(raw)) if (cell := _plain(one)) is not None}
    for exercise_id, number in places.items():
        if number in plain and "nbgrader" not in plain[number].metadata:
            mark_solution(plain[number], grade_id(exercise_id))
    cells = _within_limits([cell for cell in plain.values() if not is_score(cell.source)])
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
    return source.strip().startswith("labkit.score(") and "\n" not in source.strip()


def _listed(raw: Mapping[str, Any]) -> list[Any]:
    found = raw.get("cells")
    return found[:MOST_CELLS] if isinstance(found, list) else []


def _plain(cell: Any) -> NotebookNode | None:
    if not isinstance(cell, dict):
        return None
    source = cell.get("source")
    parts = source if isinstance(source, list) else [source]
    text = (
        "".join(p for p in parts if isinstance(p, str)).encode("utf-8", "replace").decode()[:LONGEST_SOURCE]
    )
    if cell.get("cell_type") == "code":
        return new_code_cell(text)
    pictures = images_of(cell.get("attachments"))
    return new_markdown_cell(text, attachments=pictures) if pictures else new_markdown_cell(text)


def _within_limits(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The cells until their texts are too long together, and pictures until these are too large."""
    kept: list[NotebookNode] = []
    text = images = 0
    for cell in cells:
        text += len(cell.source)
        images += sum(len(data) for kinds in cell.get("attachments", {}).values() for data in kinds.values())
        if text > MOST_TEXT:
            return [*kept, new_markdown_cell("*The rest of this submission is too long to be shown.*")]
        if images > MOST_IMAGES:
            cell.pop("attachments", None)
        kept.append(cell)
    return kept


_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
