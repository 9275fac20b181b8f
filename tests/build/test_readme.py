"""The README's table of lessons says of each what its source says; labkit's names all that is in labkit."""

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


def test_every_room_and_file_of_labkit_is_in_its_tables() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (HOUSE / "labkit" / "README.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"`([\w.]+)`", " ".join(rows)))
    files = {path.name for path in (HOUSE / "labkit").glob("*.py")} - {"__init__.py"}
    assert named >= files | {path.parent.name for path in (HOUSE / "labkit").glob("*/__init__.py")}
