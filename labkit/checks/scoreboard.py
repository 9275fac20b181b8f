"""The points reached so far, on the visible cases: one property, or the whole lesson."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from labkit.checks import registry
from labkit.checks.practice import Scores
from labkit.checks.report import CSS, Report


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
        points = f"{self.points:g} / {self.max_points:g}" if self.checked else "not checked yet"
        return f"<code>{escape(self.exercise)}</code> {escape(self.property)}: <b>{points}</b>"


@dataclass(frozen=True)
class Scoreboard:
    """The latest report of each of a lesson's exercises; None where none was checked in this kernel."""

    reports: dict[str, Report | None]

    def _rows(self) -> list[tuple[str, str, float, float, str]]:
        found: list[tuple[str, str, float, float, str]] = []
        for exercise_id, report in self.reports.items():
            exercise = registry.exercise(exercise_id)
            points = report.points if report else 0
            verdict = report.verdict.replace("_", " ") if report else "not checked yet"
            found.append((exercise_id, exercise.title, points, exercise.max_points, verdict))
        return found

    def __repr__(self) -> str:
        rows = self._rows()
        lines = [f"{name:<34} {points:g}/{most:g}  {verdict}" for name, _, points, most, verdict in rows]
        return "\n".join([*lines, f"{'in all':<34} {sum(r[2] for r in rows):g}/{sum(r[3] for r in rows):g}"])

    def _repr_html_(self) -> str:
        rows = self._rows()
        body = "".join(
            f"<tr><td><b>{escape(title)}</b><br><small>{escape(name)}</small></td><td>{escape(verdict)}</td>"
            f'<td class="points">{points:g} / {most:g}</td></tr>'
            for name, title, points, most, verdict in rows
        )
        total = f"{sum(r[2] for r in rows):g} of {sum(r[3] for r in rows):g} points on the visible cases"
        return f'<style>{CSS}</style><table class="labkit-report"><caption>{total}</caption>{body}</table>'


def score(exercise_id: str, property_name: str) -> Score:
    """The points the latest check of this kernel gave a property; 0 when there was none."""
    rule = registry.exercise(exercise_id).property(property_name)
    row = Scores.of_this_kernel().row(exercise_id, property_name)
    return Score(exercise_id, property_name, row.points if row else 0, rule.points, row is not None)


def scoreboard(lesson: str = "") -> Scoreboard:
    """All exercises of a lesson (its two digits); without one, of every lesson checked in this kernel."""
    kept = Scores.of_this_kernel().reports
    numbers = [lesson] if lesson else sorted({name[:2] for name in kept})
    return Scoreboard({e.id: kept.get(e.id) for number in numbers for e in registry.exercises(number)})
