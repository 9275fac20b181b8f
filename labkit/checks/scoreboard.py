"""The points reached so far, on the visible cases: one property, or the whole lesson."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.checks import registry
from labkit.checks.practice import Scores
from labkit.checks.report import Report
from labkit.show.html import render


@dataclass(frozen=True)
class Score:
    """The points of one property, shown as a line. Its plain text is the number alone, which nbgrader can
    read.
    """

    exercise: str
    property: str
    points: float
    max_points: float
    checked: bool

    def __repr__(self) -> str:
        return f"{self.points:g}"

    def _repr_html_(self) -> str:
        return render("score", score=self)


@dataclass(frozen=True)
class Scoreboard:
    """The latest report of each of a lesson's exercises; None where none was checked in this kernel."""

    reports: dict[str, Report | None]

    def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for exercise_id, report in self.reports.items():
            exercise = registry.exercise(exercise_id)
            found.append(
                {
                    "exercise": exercise_id,
                    "title": exercise.title,
                    "points": report.points if report else 0,
                    "most": exercise.max_points,
                    "verdict": report.verdict.replace("_", " ") if report else "not checked yet",
                }
            )
        return found

    def __repr__(self) -> str:
        rows = self._rows()
        lines = ["{exercise:<34} {points:g}/{most:g}  {verdict}".format_map(row) for row in rows]
        points, most = sum(row["points"] for row in rows), sum(row["most"] for row in rows)
        return "\n".join([*lines, f"{'in all':<34} {points:g}/{most:g}"])

    def _repr_html_(self) -> str:
        return render("scoreboard", rows=self._rows())


def score(exercise_id: str, property_name: str) -> Score:
    """The points the latest check of this kernel gave a property; 0 when there was none. KeyError where there
    is no such exercise or property.
    """
    if not isinstance(exercise_id, str):
        raise TypeError(f"expected an exercise's id in quotes, found {exercise_id!r}")
    rule = registry.exercise(exercise_id).property(property_name)
    row = Scores.of_this_kernel().row(exercise_id, property_name)
    return Score(exercise_id, property_name, row.points if row else 0, rule.points, row is not None)


def scoreboard(lesson: str = "") -> Scoreboard:
    """All exercises of a lesson (its two digits); without one, of every lesson checked in this kernel.
    KeyError where there is no such lesson.
    """
    if not isinstance(lesson, str):
        raise TypeError(
            f'expected a lesson\'s two digits in quotes, as in scoreboard("06"), found {lesson!r}'
        )
    kept = Scores.of_this_kernel().reports
    numbers = [lesson] if lesson else sorted({name[:2] for name in kept})
    return Scoreboard({e.id: kept.get(e.id) for number in numbers for e in registry.exercises(number)})
