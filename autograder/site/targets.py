"""`python -m autograder.site.targets LESSON...` records what figures of students' own code should look like.

A cell `target("NAME")` stands above the cell whose figure it shows. That one's output, when the solved
lesson runs, becomes `labkit/show/targets/NAME.html`. Recorded anew when a figure changes; looked at before
it is committed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from nbformat import NotebookNode

from autograder.grade.reference import lesson_source
from autograder.site.runs import Outputs, run_cells
from labkit.build.course import instructor_notebook
from labkit.show.target import RECORDED

SECONDS = 900.0  # for a whole lesson
_CALL = re.compile(r'target\("([\w-]+)"\)')


@click.command()
@click.argument("lessons", nargs=-1, required=True)
def main(lessons: Sequence[str]) -> None:
    """Run the solved LESSONS ("00", "04") and record the figures that their targets show."""
    for lesson in lessons:
        source = lesson_source(lesson)
        with tempfile.TemporaryDirectory(prefix="targets-") as folder:
            solved = _without_targets(instructor_notebook(source))
            outputs = run_cells(source.name, solved, Path(folder), SECONDS, lambda done, of: None)
        for name, shown in targets(instructor_notebook(source), outputs):
            (RECORDED / f"{name}.html").write_text(shown, encoding="utf-8")
            click.echo(f"{name}: {len(shown) // 1024} KiB")


def _without_targets(solved: NotebookNode) -> NotebookNode:
    """The notebook, in which a target that has not been recorded yet does not end the run that records it."""
    for cell in solved.cells:
        if cell.cell_type == "code" and _CALL.fullmatch(cell.source):
            cell.source = "pass"
    return solved


def targets(notebook: NotebookNode, outputs: Outputs) -> Iterator[tuple[str, str]]:
    """The name of each target of a notebook, and the HTML of what the code cell below it showed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, below in pairwise(code):
        name = _CALL.fullmatch(cell.source)
        if name:
            yield name[1], "\n".join(_figures(outputs.get(below.id, ())))


def _figures(shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for output in shown:
        html = output.get("data", {}).get("text/html")
        if html is not None:
            yield "".join(html)


if __name__ == "__main__":
    main()
