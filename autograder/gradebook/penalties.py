"""What lateness costs: a function of the score that a submission has now, in nbgrader's late penalties.

nbgrader computes a penalty once, when it grades, from the score of that moment. Points that a person gives
later, as where they were held back, would then be free of it. So it is computed wherever scores are read, and
what the gradebook has is brought up to date before nbgrader shows or exports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from math import isclose, isnan
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.plugins import CsvExportPlugin
from nbgrader.preprocessors import AssignLatePenalties

from autograder.gradebook.lateness import apply_extension
from autograder.gradebook.named import write_named
from autograder.gradebook.pages import LATE
from autograder.gradebook.problems import CourseError
from labkit.checks.source.text import visible

Penalties = Mapping[str, float]  # notebook -> points that are taken off, at most its score


class PresentPenalties(AssignLatePenalties):
    """nbgrader's step with its plugin, for a submission as it is scored now. As a step of feedback it brings
    the gradebook up to date.
    """

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        about = resources["nbgrader"]
        with Gradebook(about["db_url"]) as gradebook:
            self.renew(
                gradebook, gradebook.find_submission(about["assignment"], about["student"]), Path.cwd()
            )
        return nb, resources

    def owed(self, submission: SubmittedAssignment) -> Penalties:
        """What the plugin takes from a submission. CourseError where the plugin fails."""
        late = submission.total_seconds_late
        if not late > 0:
            return {notebook.name: 0.0 for notebook in submission.notebooks}
        student = submission.student.id
        try:
            self.init_plugin()
            of = self.plugin_inst.late_submission_penalty
            return {n.name: _within(of(student, n.score, late), n.score) for n in submission.notebooks}
        except Exception as problem:  # it is an instructor's Python
            raise CourseError(
                f"the plugin of late penalties, {self.plugin_class.__name__}, fails for {visible(student)}: "
                f"{type(problem).__name__}: {problem}; correct it, or take c.AssignLatePenalties out of "
                "nbgrader_config.py"
            ) from problem

    def is_written(self, submission: SubmittedAssignment) -> bool:
        """Whether the gradebook has the penalties that are owed."""
        owed = self.owed(submission)
        return all(
            isclose(notebook.late_submission_penalty or 0, owed[notebook.name], abs_tol=1e-6)
            for notebook in submission.notebooks
        )

    def write(self, gradebook: Gradebook, submission: SubmittedAssignment) -> str:
        """Put the penalties that are owed into the gradebook; returns what is to be told of them."""
        owed = self.owed(submission)
        for notebook in submission.notebooks:
            notebook.late_submission_penalty = owed[notebook.name]
        gradebook.db.commit()
        return what_it_cost(submission, owed)

    def renew(self, gradebook: Gradebook, submission: SubmittedAssignment, course: Path) -> None:
        """Put the penalties that are owed into the gradebook, and into what formgrader shows."""
        if self.is_written(submission):
            return
        told = what_it_cost(submission, self.owed(submission))
        folder = course / "autograded" / submission.student.id / submission.name
        for notebook in submission.notebooks:
            _note_again(folder / f"{notebook.name}.ipynb", told)
        self.write(gradebook, submission)  # last: where this is cut off, it is done again


class LatePenalties(PresentPenalties):
    """The step of grading, after the course's extensions were put into the gradebook."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        about = resources["nbgrader"]
        apply_extension(Path.cwd(), about["db_url"], about["assignment"], about["student"])
        with Gradebook(about["db_url"]) as gradebook:
            submission = gradebook.find_submission(about["assignment"], about["student"])
            _note(nb, self.write(gradebook, submission))
        return nb, resources


class ExportWithPenalties(CsvExportPlugin):
    """`nbgrader export`, after the gradebook was brought up to date."""

    def export(self, gradebook: Gradebook) -> None:
        """Write the table of all scores."""
        penalties = PresentPenalties(parent=self)
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                penalties.renew(gradebook, submission, Path(self.parent.coursedir.root))
        super().export(gradebook)


def what_it_cost(submission: SubmittedAssignment, owed: Penalties) -> str:
    """How late a submission was, and what that takes from it; empty where it was not."""
    if not submission.total_seconds_late:
        return ""
    late = timedelta(seconds=round(submission.total_seconds_late))
    return f"**Handed in {late} after the due date:** {sum(owed.values()):g} points are taken off."


def _within(points: float | None, score: float) -> float:
    """A plugin's answer as nbgrader takes it: nothing is None, and nobody has less than no points, or more
    for being late.
    """
    if points is not None and isnan(points):
        raise ValueError("a penalty that is no number")
    return max(0.0, min(float(points or 0), score))


def _note(nb: NotebookNode, told: str) -> None:
    nb.metadata.update({LATE: told} if told else {})


def _note_again(autograded: Path, told: str) -> None:
    """Put the sentence about lateness into a notebook that is graded, in place of an earlier one."""
    if not autograded.is_file():
        return
    nb = nbformat.read(autograded, as_version=nbformat.NO_CONVERT)
    nb.metadata.pop(LATE, None)
    _note(nb, told)
    write_named(autograded, nbformat.writes(nb).encode())
