"""Whether a gradebook has a lesson as it is now, or as an earlier version of the workbook added it.

nbgrader adds no graded cells to a lesson once somebody has been graded, and takes none away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nbgrader.api import Gradebook

from autograder.gradebook.problems import CourseError
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id


@dataclass(frozen=True)
class _Added:
    """A lesson in a gradebook. points: of each graded cell. graded: somebody has a grade."""

    lesson: str
    points: Mapping[str, float]
    graded: bool

    @property
    def missing(self) -> list[str]:
        """Graded cells that it does not have."""
        return [name for name in _points_now(self.lesson) if name not in self.points]

    @property
    def changed(self) -> list[str]:
        """Graded cells that have other points now."""
        now = _points_now(self.lesson)
        return [
            f"{name} ({self.points[name]:g} points, now {points:g})"
            for name, points in now.items()
            if self.points.get(name, points) != points
        ]


def check_can_be_graded(db_url: str, lesson: str) -> None:
    """CourseError where points would be written to graded cells that the gradebook does not have, or has with
    other points. Cells of an instructor's own are left to a person.
    """
    added = _added(db_url, lesson)
    if added.missing and added.graded:
        raise _too_late(added, added.missing)
    if other := added.missing + added.changed:
        raise CourseError(
            f"the gradebook has an earlier version of {lesson}, with another {', '.join(other)}: "
            f"`autograder add {lesson[:2]}` brings it up to date"
        )


def check_can_be_added(db_url: str, lesson: str) -> None:
    """CourseError where nbgrader would refuse the lesson, and take its release away for it."""
    added = _added(db_url, lesson)
    others = sorted(set(added.points) ^ set(_points_now(lesson)))
    if others and added.graded:
        raise _too_late(added, others)


def _too_late(added: _Added, cells: list[str]) -> CourseError:
    number = added.lesson[:2]
    return CourseError(
        f"the gradebook has {added.lesson} with other graded cells than this version ({', '.join(cells)}), "
        "and keeps them, as somebody has been graded. Grade with the version that added it; or export what "
        f"there is, move the gradebook away, and run `autograder grade {number}`, which writes it again, all "
        "but due dates, and the points and comments that a person gave"
    )


def _points_now(lesson: str) -> dict[str, int]:
    return {grade_id(e.id, p.name): p.points for e in registry.exercises(lesson) for p in e.properties}


def _added(db_url: str, lesson: str) -> _Added:
    with Gradebook(db_url) as gradebook:
        notebook = gradebook.find_notebook(lesson, lesson)
        points = {cell.name: cell.max_score for cell in notebook.grade_cells}
        return _Added(lesson, points, bool(notebook.submissions))
