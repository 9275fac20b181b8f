"""A lesson's page: the notebook as released, with what the cells of a solved one showed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.grade.reference import REPOSITORY
from autograder.site.calculator import calculator_html
from autograder.site.formulas import as_mathml
from autograder.site.runs import Outputs

WIDGET = "application/vnd.jupyter.widget-view+json"
NEEDS_KERNEL = "<p><i>This cell's controls need a running notebook. Shown is where they start.</i></p>"
RAN = """:::{{note}}
This is the lesson as students get it. What is below its cells was shown when the **solved** lesson ran,
on {host}: your own numbers will differ, and the solutions are yours to write.
[Open it and work on it](../start.md).
:::"""
DID_NOT_RUN = """:::{note}
This is the lesson as students get it. [Open it and work on it](../start.md).
:::"""


def lesson_page(name: str, outputs: Outputs | None, host: str) -> NotebookNode:
    """The lesson for Sphinx. outputs: of a solved run, or None where there was none."""
    released = nbformat.read(REPOSITORY / "notebooks" / name / f"{name}.ipynb", as_version=4)
    note = DID_NOT_RUN if outputs is None else RAN.format(host=host)
    cells = [cell for cell in released.cells if not _only_for_grading(cell)]
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.from_dict(shown) for shown in _shown(cell, outputs or {})]
        else:
            cell.source = re.sub(r"(?s)<details>.*?</details>", _formulas_inside, cell.source)
    released.cells = [cells[0], new_markdown_cell(note, id="where-this-is-from"), *cells[1:]]
    released.metadata.pop("widgets", None)
    return released


def _only_for_grading(cell: NotebookNode) -> bool:
    return cell.source.startswith(("labkit.score(", "### Points\n"))


def _formulas_inside(folded: re.Match[str]) -> str:
    """In HTML, where Markdown's formulas are not looked for."""
    return re.sub(r"\$([^$]+)\$", lambda formula: as_mathml(formula[1]), folded[0])


def _shown(cell: NotebookNode, outputs: Outputs) -> Sequence[Mapping[str, Any]]:
    """A cell's outputs. Controls that need a kernel are replaced, by those of the page where it has them."""
    shown = outputs.get(cell.id, ())
    kept = [output for output in shown if WIDGET not in output.get("data", {})]
    if len(kept) == len(shown):
        return kept
    start = _start(cell.source, "MemoryCalculator")
    if start is None:
        return [_html(NEEDS_KERNEL), *kept]
    return [_html(calculator_html(start))]


def _start(source: str, widget: str) -> dict[str, Any] | None:
    """The keywords a cell calls `widget` with; None when it does not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == widget:
            return {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
    return None


def _html(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/html": text}, "metadata": {}}
