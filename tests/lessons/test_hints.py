"""Whoever is told to use an earlier part is graded with a right one in its place."""

from __future__ import annotations

import re

import pytest

from autograder.grade.reference import graded_lessons, lesson_source
from labkit.checks import registry

HINT = re.compile(r"<details>.*?</details>", re.DOTALL)


@pytest.mark.parametrize("lesson", graded_lessons())
def test_an_exercise_builds_on_what_its_hints_name(lesson: str) -> None:
    texts = _hints(lesson)
    assert texts
    before: dict[str, str] = {}
    for exercise in registry.exercises(lesson):
        named = {before[name] for name in before if re.search(rf"\b{name}\b", texts[exercise.id])}
        assert named <= set(exercise.builds_on), f"{exercise.id}: its hints name {sorted(named)}"
        before |= dict.fromkeys(exercise.names, exercise.id)


def _hints(lesson: str) -> dict[str, str]:
    """Exercise -> the hints in the text above its cell."""
    above, found = "", {}
    for cell in lesson_source(lesson).cells:
        if cell.source.count("### Exercise"):
            above = cell.source
        if "exercise" in cell.options:
            found[str(cell.options["exercise"])] = " ".join(HINT.findall(above))
    return found
