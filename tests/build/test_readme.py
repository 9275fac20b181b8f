"""The README's table of lessons says of each what its source says."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.build import find_lessons, read_lesson
from labkit.build.course import lesson_exercises

HOUSE = Path(__file__).resolve().parents[2]


def test_each_lesson_is_there_with_its_exercises_and_minutes() -> None:
    rows = re.findall(
        r"^\| \[(\d\d) .*\| (\d+) \| (\d+) \|$", (HOUSE / "README.md").read_text(), re.MULTILINE
    )
    lessons = [read_lesson(path) for path in find_lessons([], HOUSE / "solutions")]
    assert {number: (int(exercises), int(minutes)) for number, exercises, minutes in rows} == {
        lesson.number: (len(lesson_exercises(lesson)), lesson.minutes) for lesson in lessons
    }
