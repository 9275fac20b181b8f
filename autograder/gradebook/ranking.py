"""A table of measured scores that an instructor can publish: by names that students chose, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from autograder.grade.records import Record
from autograder.grade.submitted import LONGEST_NAME
from labkit.checks import registry


def ranking(records: Sequence[Record], lesson: str) -> str:
    """A table for each exercise of the lesson that measures something, the least first; equals share a place.

    In it are those who chose a name and whose numbers are right, with nothing waiting for a person.
    """
    measuring = [e.id for e in registry.exercises(lesson) if e.measures]
    return "\n\n".join(_table(records, exercise) for exercise in measuring) or f"{lesson} measures nothing"


def _table(records: Sequence[Record], exercise: str) -> str:
    ranked = [(r.chosen_name, r.graded[exercise].report.measured) for r in records if _may_rank(r, exercise)]
    if not ranked:
        return f"{exercise}: nobody to rank yet (who chose a `ranking_name`, and whose numbers are right)"
    columns = list(ranked[0][1])
    ranked.sort(key=lambda row: (row[1][columns[0]], row[0]))
    lines = [exercise, "  ".join([f"{'':>3}", f"{'name':<{LONGEST_NAME}}", *columns])]
    scores = [measured[columns[0]] for _, measured in ranked]
    for name, measured in ranked:
        numbers = [f"{measured[column]:>{len(column)}g}" for column in columns]
        place = scores.index(measured[columns[0]]) + 1
        lines.append("  ".join([f"{place:>3}", f"{name:<{LONGEST_NAME}}", *numbers]))
    return "\n".join(lines)


def _may_rank(record: Record, exercise: str) -> bool:
    graded = record.graded.get(exercise)
    if not record.chosen_name or graded is None or graded.held or not graded.report.measured:
        return False
    return all(row.passed for row in graded.report.rows if row.kind == "numbers")
