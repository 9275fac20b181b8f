"""A lesson of more than two hours says where to stop for the day, and either side fits one sitting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.build import find_lessons, read_lesson
from labkit.build.markup import Lesson

HOUSE = Path(__file__).resolve().parents[2]
LESSONS = [read_lesson(path) for path in find_lessons([], HOUSE / "solutions")]
ONE_SITTING = 120  # minutes


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_no_sitting_is_longer_than_two_hours(lesson: Lesson) -> None:
    opening = lesson.cells[0].source.replace("\n", " ")
    break_at = re.search(
        rf"About {lesson.minutes} minutes(?:: two sittings, the second from \*(.+?)\* on)?\.(?: |$)", opening
    )
    assert break_at, opening
    assert all(minutes <= ONE_SITTING for minutes in _sittings(lesson, break_at[1])), lesson.minutes


def _sittings(lesson: Lesson, second: str | None) -> list[float]:
    """Minutes of each: its exercises', and of what is to be read and looked at its share by exercises."""
    if second is None:
        return [lesson.minutes]
    exercises = [0, 0]
    past = 0
    for cell in lesson.cells:
        if cell.kind == "markdown" and f"## {second}" in cell.source.splitlines():
            past = 1
        exercises[past] += cell.options.get("minutes", 0)
    assert all(exercises), f"no exercises on both sides of a heading {second!r}"
    return [lesson.minutes * part / sum(exercises) for part in exercises]
