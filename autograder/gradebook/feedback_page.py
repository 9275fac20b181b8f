"""The page a student gets back: each exercise with its points, what was asked of it and their own code under
it, then the rest of their notebook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_task

from autograder.gradebook.pages import LATE, SubmissionPage
from labkit.checks import registry

_HEADING = re.compile(r"<(/?)h([1-6])>")
_UNDER = 2  # how many levels a student's headings stand below their own, under those of the page


@dataclass(frozen=True)
class Changed:
    """A property whose points a person gave. auto: what grading gave; None where it gave nothing."""

    name: str
    score: float
    points: float
    auto: float | None


@dataclass
class ExerciseFeedback:
    """What the page says of one exercise. tables: HTML, sanitised. waiting: names of properties that have no
    points yet.
    """

    id: str
    title: str
    verdict: str = ""
    score: float = 0.0
    points: float = 0.0
    tables: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    answer: NotebookNode | None = None

    @property
    def comment(self) -> str:
        """What a person wrote under the student's answer."""
        return str(self.answer.metadata.nbgrader.get("comment") or "") if self.answer else ""

    @property
    def anchor(self) -> str:
        """What a link on the page calls it."""
        return "exercise-" + self.id.replace(".", "-")

    @property
    def result(self) -> str:
        """How it went, in a word or two."""
        if self.waiting:
            return "waits for a person"
        if self.score >= self.points:
            return "all points"
        return self.verdict.replace("_", " ") if self.verdict not in ("", "passed", "failed") else "some lost"


class FeedbackPage(SubmissionPage):
    """The exporter of `nbgrader generate_feedback` in this course."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.template_file = "feedback.html.j2"

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        """nbconvert's, and what the template makes of the cells."""
        yield from super().default_filters()
        yield "by_exercise", by_exercise
        yield "ungraded", ungraded
        yield "short", lambda number: f"{number:g}"

    def shown(self, nb: NotebookNode) -> NotebookNode:
        """The notebook cut down; what lateness cost stands in the page's head."""
        nb.metadata.pop(LATE, None)
        return super().shown(nb)

    def clean(self, html: str) -> str:
        """Sanitised, with headings that stand under those of the page."""
        return _HEADING.sub(
            lambda found: f"<{found[1]}h{min(6, int(found[2]) + _UNDER)}>", super().clean(html)
        )


class GetGradesAndChanges(GetGrades):
    """nbgrader's step that reads scores for the page; this one tells too which a person gave."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: Any, cell_index: int
    ) -> tuple[NotebookNode, Any]:
        """Write into a graded cell what nbgrader does, what grading gave, and whether it waits for points."""
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if is_grade(cell) or is_task(cell):
            marks = cell.metadata.nbgrader
            grade = self.gradebook.find_grade(
                marks["grade_id"], self.notebook_id, self.assignment_id, self.student_id
            )
            marks["auto"] = grade.auto_score
            marks["waiting"] = grade.auto_score is None and grade.manual_score is None
        return cell, resources


def by_exercise(cells: Iterable[NotebookNode]) -> list[ExerciseFeedback]:
    """What to say of each exercise that has graded cells, in their order."""
    cells = list(cells)
    found: dict[str, ExerciseFeedback] = {}
    for cell in cells:
        if _is_graded(cell):
            name = cell.metadata.nbgrader.grade_id.partition("__")[0]
            _add_points(found.setdefault(name, _named(name)), cell)
    for cell in cells:
        about = found.get(_grade_id(cell))
        if about is not None and not _is_graded(cell):
            about.answer = cell
            about.tables = [*_tables(cell), *about.tables]
    return list(found.values())


def ungraded(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The student's notebook without the cells that only hold points."""
    return [cell for cell in cells if not _is_graded(cell)]


def _add_points(about: ExerciseFeedback, cell: NotebookNode) -> None:
    marks = cell.metadata.nbgrader
    name = marks.grade_id.partition("__")[2]
    about.score += marks.score
    about.points += marks.points
    about.verdict = about.verdict or marks.get("verdict", "")
    about.tables += _tables(cell)
    if marks.get("waiting"):
        about.waiting.append(name)
    elif "auto" in marks and marks.auto != marks.score:
        about.changed.append(Changed(name, marks.score, marks.points, marks.auto))


def _named(name: str) -> ExerciseFeedback:
    exercise_id = name.replace("_", ".", 1)
    try:
        return ExerciseFeedback(exercise_id, registry.exercise(exercise_id).title)
    except registry.UnknownExercise:  # of a lesson that is not the course's
        return ExerciseFeedback(exercise_id, exercise_id)


def _tables(cell: NotebookNode) -> list[str]:
    shown = (output.data.get("text/html") for output in cell.get("outputs", []) if "data" in output)
    return [html for html in shown if html]


def _grade_id(cell: NotebookNode) -> str:
    return str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))


def _is_graded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))
