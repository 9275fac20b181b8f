"""Finds exercises by id. A lesson's checks are one module, `labkit.checks.lesson_NN`, with a list
`EXERCISES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from functools import cache

from labkit.checks.exercise import Exercise

EXERCISE_ID = re.compile(r"^\d\d\.[a-z0-9-]+$")


class UnknownExercise(KeyError):
    """No exercise has that id."""

    def __str__(self) -> str:
        return str(self.args[0])


def lessons() -> list[str]:
    """The two-digit numbers of the lessons that have checks, in order."""
    package = importlib.import_module("labkit.checks")
    found = (re.fullmatch(r"lesson_(\d\d)", m.name) for m in pkgutil.iter_modules(package.__path__))
    return sorted(match[1] for match in found if match)


def module_of(lesson: str) -> str:
    """The module that holds the exercises of a lesson, given as its folder, or as one of its exercises."""
    return f"labkit.checks.lesson_{lesson[:2]}"


@cache
def exercises(lesson: str) -> tuple[Exercise, ...]:
    """A lesson's exercises in the order they are met. `lesson` is its two digits, or its folder name."""
    number = lesson[:2]
    module = module_of(lesson)
    if not re.fullmatch(r"\d\d", number) or importlib.util.find_spec(module) is None:
        raise UnknownExercise(f"no lesson {lesson!r}; the lessons with exercises are {', '.join(lessons())}")
    return tuple(importlib.import_module(module).EXERCISES)


def exercise(exercise_id: str) -> Exercise:
    """The exercise of that id. UnknownExercise says which ids there are."""
    if not EXERCISE_ID.match(exercise_id):
        raise UnknownExercise(
            f"{exercise_id!r} is not an exercise id; one looks like '06.row-parallel-linear'"
        )
    known = exercises(exercise_id)
    for candidate in known:
        if candidate.id == exercise_id:
            return candidate
    raise UnknownExercise(
        f"no exercise {exercise_id!r}; lesson {known[0].lesson} has {', '.join(e.id for e in known)}"
    )
