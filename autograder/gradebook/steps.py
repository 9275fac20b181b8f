"""The steps this course gives nbgrader in place of its own: read safely, grade in the sandbox, write the
record's points.

They are configured in `nbgrader_config.py`, so `nbgrader autograde`, the formgrader page's button and
`autograder grade` all go through them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.grade.deciding import checks_digest
from autograder.grade.grading import Conditions, digest_of, grade_notebook
from autograder.grade.records import Record, load, save
from autograder.grade.settings import Settings
from autograder.grade.submitted import parse_notebook, read_bytes
from autograder.gradebook import rebuild
from autograder.gradebook.handed_in import time_of
from autograder.gradebook.links import check_no_links
from autograder.gradebook.nbgrader_private import reads_the_students_file, resources_of
from autograder.gradebook.pages import VERDICT
from autograder.gradebook.problems import CourseError
from autograder.gradebook.requests import requests_in
from labkit.checks.report import Report
from labkit.checks.source.notebook import BadNotebook, grade_id
from labkit.checks.source.text import visible


class SafeExporter(NotebookExporter):
    """nbgrader's exporter, which does not read what was handed in: `GradeInSandbox` does. Of what nbconvert
    hands from step to step it makes copies, and a student's file may be anything.
    """

    def from_filename(self, filename: str, resources: Any = None, **kw: Any) -> tuple[Any, Any]:
        if reads_the_students_file(self):
            resources = resources_of(self, resources)
            resources["labkit"] = {"path": filename}
            return self.from_notebook_node(rebuild.placeholder("", ()), resources=resources, **kw)
        return super().from_filename(filename, resources=resources, **kw)


class GradeInSandbox(NbGraderPreprocessor):
    """Takes the place of the steps that clean up a submission, and of the one that executes it."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        path, nbgrader = Path(resources["labkit"]["path"]), resources["nbgrader"]
        lesson = nbgrader["assignment"]
        check_no_links(path.parent)
        time_of(path.parent)  # or a CourseError: nbgrader has gone on without it
        record = current_record(path, lesson, nbgrader["student"])
        cells = graded_cells(nbgrader["db_url"], nbgrader["notebook"], lesson)
        return as_graded(path, record, cells), resources


class SaveGrades(NbGraderPreprocessor):
    """Writes the record's points for every graded cell of the gradebook, and shows the tables beside the
    student's code.
    """

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        about = resources["nbgrader"]
        record = load(Path.cwd(), about["assignment"], about["student"])
        if record is None:
            raise RuntimeError(f"no record of {about['student']}: the sandbox step comes first")
        asked = requests_in(Path("submitted", about["student"], about["assignment"]), about["assignment"])
        with Gradebook(about["db_url"]) as gradebook:
            save_grades(gradebook, about["notebook"], about["student"], record, dict(asked))
        show_results(nb, record, asked)
        return nb, resources


def current_record(path: Path, lesson: str, student: str) -> Record:
    """The submission's record, made now if there is none that fits."""
    settings = Settings.load(Path.cwd())
    sandbox = settings.sandbox()
    record = load(Path.cwd(), lesson, student)
    if record is None or not record.fits(
        digest_of(path), settings.seed(lesson), sandbox.name, checks_digest(lesson)
    ):
        before, conditions = record, Conditions(lesson, settings.seed(lesson), sandbox)
        record = grade_notebook(path, student, conditions)
        if before is not None and before.sha256 == record.sha256:
            # `path` may be a copy under the name that nbgrader looks for, made of what was graded before
            record.notebook = before.notebook
            record.notes = list(dict.fromkeys([*record.notes, *before.notes]))
        save(Path.cwd(), record)
    return record


def as_graded(path: Path, record: Record, cells: Sequence[NotebookNode]) -> NotebookNode:
    """What was graded, and these graded cells: what nbgrader keeps of the submission at `path`.

    CourseError where the file is not what the record is of, or cannot be read as it was for it: a person
    would be shown something else than what has the points.
    """
    digest, raw, problem = "", dict[str, Any](), ""
    try:
        data = read_bytes(path)
        digest = hashlib.sha256(data).hexdigest()
        raw = parse_notebook(data, visible(path.name)).raw
    except BadNotebook as found:
        problem = str(found)
    if digest != record.sha256:
        raise CourseError(
            f"{visible(path.name)} is not the file any more that was graded, so it cannot be shown with "
            "these points: run the command again, and it is graded as it is now"
        )
    if record.problem:
        return rebuild.placeholder(record.problem, cells)
    if problem:
        raise CourseError(
            f"{problem}. It could be read when it was graded: run the command again with --force"
        )
    return rebuild.rebuilt(raw, record.places, cells, record.collected)


def graded_cells(db_url: str, notebook: str, assignment: str) -> list[NotebookNode]:
    """The graded cells of an assignment as the gradebook has them, in their order."""
    with Gradebook(db_url) as gradebook:
        found = gradebook.find_notebook(notebook, assignment)
        sources = {cell.name: cell.source for cell in found.source_cells}
        return [
            rebuild.graded_cell(c.name, c.max_score, sources.get(c.name) or "") for c in found.grade_cells
        ]


def save_grades(
    gradebook: Gradebook, notebook: str, student: str, record: Record, asked: Container[str] = ()
) -> None:
    """One score for each graded cell. No score, and a mark for a person, where the harness could not grade;
    the mark alone where a student asked for another look.
    """
    points = scores(record)
    submission = gradebook.find_submission_notebook(notebook, record.lesson, student)
    for grade in submission.grades:
        score = points.get(grade.name)
        grade.auto_score = score
        grade.needs_manual_grade = (
            score is None or grade.manual_score is not None or grade.name in _to_look_at(record, asked)
        )
    gradebook.db.commit()


def scores(record: Record) -> dict[str, float | None]:
    """Graded cell -> points; None where the exercise could not be graded."""
    found: dict[str, float | None] = {}
    for name, graded in record.graded.items():
        for row in graded.report.rows:
            open_question = name in record.ungraded or row.name in graded.held
            found[grade_id(name, row.name)] = None if open_question else row.points
    return found


def show_results(nb: NotebookNode, record: Record, asked: Sequence[tuple[str, str]] = ()) -> None:
    """Put each exercise's table under the student's cell, or under its first graded cell, and a line
    under each of those. asked: exercises and why the student wants another look.
    """
    places = {c.metadata["nbgrader"]["grade_id"]: c for c in nb.cells if "nbgrader" in c.metadata}
    for name, graded in record.graded.items():
        report = graded.report
        first = places.get(grade_id(name, report.rows[0].name))
        for row in report.rows:
            if cell := places.get(grade_id(name, row.name)):
                cell.metadata[VERDICT] = report.verdict
                cell.outputs = [_text(f"{row.points:g} of {row.max_points:g}: {row.message}")]
        if cell := places.get(grade_id(name)) or first:
            reasons = [_text(f"Asked for another look: {reason}") for one, reason in asked if one == name]
            cell.outputs = [*reasons, _table(report, record), *cell.outputs]


def _to_look_at(record: Record, asked: Container[str]) -> set[str]:
    """The first graded cell of each exercise with flags, or that a student asked about: where formgrader will
    ask a person to look.
    """
    flagged = {name for name, _ in record.flags} | {name for name in record.graded if name in asked}
    return {grade_id(name, record.graded[name].report.rows[0].name) for name in flagged}


def _table(report: Report, record: Record) -> NotebookNode:
    unsafe = "" if record.sandbox != "none" else "Graded without a sandbox: for practice only."
    data = {"text/html": report.html(unsafe), "text/plain": repr(report)}
    return new_output("display_data", data)


def _text(text: str) -> NotebookNode:
    return new_output("display_data", {"text/plain": text})
