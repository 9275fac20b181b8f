"""Right answers written another way than the reference: each earns every point, or a check asks too much.

`lessons/lesson_NN/alternatives/EXERCISE-WHAT.py` stands in the place of the exercise's whole cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autograder.selftest.variants import with_source
from autograder.selftest.wrong_answers import LESSONS
from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell


class AlternativeError(ValueError):
    """A file of an alternative is named after no exercise; the message names it."""


@dataclass(frozen=True)
class Alternative:
    """Another right answer to an exercise. name: the file's, without `.py`."""

    name: str
    exercise: Exercise
    source: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The solved notebook with this answer in the place of the reference."""
        return with_source(self.exercise, self.source)

    @property
    def graded(self) -> list[Exercise]:
        """The exercises it must earn all points of: its own, and those of the lesson that build on it."""
        of_lesson = registry.exercises(self.exercise.lesson)
        return [self.exercise, *(e for e in of_lesson if self.exercise.id in e.builds_on)]


def alternatives(lesson: str) -> list[Alternative]:
    """The alternatives of a lesson given by its number or name, by their names."""
    folder = LESSONS / f"lesson_{lesson[:2]}" / "alternatives"
    return [
        Alternative(path.stem, _exercise_of(path, lesson), path.read_text(encoding="utf-8").rstrip("\n"))
        for path in sorted(folder.glob("*.py"))
    ]


def _exercise_of(path: Path, lesson: str) -> Exercise:
    """The exercise with the longest name that the file's name begins with."""
    known = registry.exercises(lesson)
    fitting = [e for e in known if path.stem.startswith(f"{e.id.partition('.')[2]}-")]
    if not fitting:
        raise AlternativeError(
            f"{path}: expected EXERCISE-WHAT.py with one of {', '.join(e.id for e in known)}"
        )
    return max(fitting, key=lambda exercise: len(exercise.id))
