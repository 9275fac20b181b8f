"""When work was handed in, and until when it might have been: what nbgrader's late penalties go by.

`extensions.csv` in a course's folder gives single students more time, a line each: student, lesson, until.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dateutil import parser
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import parse_utc

from autograder.grade.submitted import read_bytes
from autograder.gradebook.pages import LATE
from autograder.gradebook.problems import CourseError
from autograder.gradebook.tables import rows_of, text_of
from labkit.checks.source.notebook import BadNotebook
from labkit.checks.source.text import visible

EXTENSIONS = "extensions.csv"
TIME = "timestamp.txt"  # of handing in, beside the notebook: nbgrader's
MOST_BYTES = 2**20  # of that file
COLUMNS = ("student", "lesson", "until")


class LatePenalties(AssignLatePenalties):
    """nbgrader's step, after the course's extensions were put into the gradebook."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        about, course = resources["nbgrader"], Path.cwd()
        if (course / EXTENSIONS).is_file():
            until = read_extensions(course).get((about["student"], about["assignment"][:2]))
            with Gradebook(about["db_url"]) as gradebook:
                extend(gradebook, about["assignment"], about["student"], until)
        nb, resources = super().preprocess(nb, resources)
        with Gradebook(about["db_url"]) as gradebook:
            told = what_it_cost(gradebook, about["assignment"], about["student"])
        nb.metadata.update({LATE: told} if told else {})
        return nb, resources


def what_it_cost(gradebook: Gradebook, lesson: str, student: str) -> str:
    """How late a submission was, and what that takes from it; empty where it was not."""
    submission = gradebook.find_submission(lesson, student)
    if not submission.total_seconds_late:
        return ""
    late = timedelta(seconds=round(submission.total_seconds_late))
    penalty = submission.late_submission_penalty
    return f"**Handed in {late} after the due date:** {penalty:g} points are taken off."


def extend(gradebook: Gradebook, lesson: str, student: str, until: datetime | None) -> None:
    """Let a student hand in until then; until the due date of all with None."""
    submission = gradebook.find_submission(lesson, student)
    due = submission.assignment.duedate
    submission.extension = until - due if until is not None and due is not None else None
    gradebook.db.commit()


def read_extensions(course: Path) -> Mapping[tuple[str, str], datetime]:
    """(student, two digits of a lesson) -> until when, as UTC without a zone, as nbgrader keeps times.

    CourseError says which line cannot be read.
    """
    path = course / EXTENSIONS
    if not path.is_file():
        return {}
    found = {}
    for number, row in enumerate(rows_of(text_of(path)), 2):
        try:
            student, lesson, until = ((row[column] or "").strip() for column in COLUMNS)
            found[student, lesson[:2]] = _utc(until)
        except (KeyError, ValueError, OverflowError) as problem:
            raise CourseError(
                f"{path}, line {number}: expected {','.join(COLUMNS)}, as in "
                f"ada,06,2026-12-01 23:59 +0100; found {','.join(map(str, row.values()))} ({problem})"
            ) from None
    return found


def unused_extensions(course: Path, lesson: str, handed_in: Collection[str]) -> list[str]:
    """A sentence for each extension of a lesson whose student handed nothing in: the id may be mistyped."""
    told = []
    for student, digits in read_extensions(course):
        if digits == lesson[:2] and student not in handed_in:
            near = get_close_matches(student, handed_in, cutoff=0.5)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            told.append(
                f"{EXTENSIONS} gives {visible(student)!r} more time for {lesson}, and nobody of that id "
                f"handed it in{meant}"
            )
    return told


def check_time(submission: Path) -> None:
    """CourseError where the file that says when a submission was handed in cannot be read.

    One that is empty, not there, or a link, which is not followed, says nothing.
    """
    path = submission / TIME
    if path.is_symlink() or not path.exists():
        return
    try:
        text = read_bytes(path, MOST_BYTES).decode().strip()
        parse_utc(text or None)
    except (BadNotebook, ValueError, OverflowError) as problem:
        raise CourseError(
            f"{path}: expected a time such as 2026-12-01 23:59:00 UTC ({str(problem)[:200]}); correct "
            "it, or delete it, and the work counts as handed in in time"
        ) from None


def _utc(text: str) -> datetime:
    """A time with a zone's name or its offset; UTC without either."""
    named = text.rpartition(" ")[2][:1].isalpha()  # nbgrader takes an offset, +0100, for seconds
    utc: datetime = parse_utc(text if named else parser.parse(text))
    return utc


def due_date(db_url: str, lesson: str) -> datetime | None:
    """When a lesson is due for all, as UTC; None where nobody has said."""
    with Gradebook(db_url) as gradebook:
        try:
            due: datetime | None = gradebook.find_assignment(lesson).duedate
        except MissingEntry:
            return None
    return due
