"""What an exercise's cases leave alone nobody tries: a solution may ignore it and earn every point."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from autograder.grade.reference import all_cases, graded_lessons
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise

SEEDS = (1, 2)
ABSENT = "what it is by default"
EXERCISES = [exercise for lesson in graded_lessons() for exercise in registry.exercises(lesson)]
OF_LATER_MODELS = ("mixture", "latent")  # fields of a config that lesson 01 knows nothing of
GPT_ALONE = (
    "01.activation-bytes",
    "01.largest-micro-batch",
    "01.predict-step",
)  # their texts ask for no other
exercises = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)


@exercises
def test_no_setting_of_the_cases_stands_still(exercise: Exercise) -> None:
    cases = [case for seed in SEEDS for case in all_cases(exercise, seed)]
    names = {name for case in cases for name in case.params}
    seen = {name: {_text(case.params.get(name, ABSENT)) for case in cases} for name in names}
    assert [name for name, values in seen.items() if len(values) == 1 and len(cases) > 1] == []


@exercises
def test_no_argument_of_a_formula_stands_still(exercise: Exercise) -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    calls = list(_calls(exercise))
    names = {(function, name) for function, arguments in calls for name in arguments}
    for function, arguments in calls:
        for of, name in names:
            if of == function:
                seen[f"{function}({name})"].add(_text(arguments.get(name, ABSENT)))
    assert [name for name, values in seen.items() if len(values) == 1] == []


def _calls(exercise: Exercise) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The functions of numbers that the cases call, and their arguments; a config's fields apart."""
    for case in (case for seed in SEEDS for case in all_cases(exercise, seed)):
        for call in _written_out(case, "calls"):
            yield call["function"], _fields(call["arguments"], exercise.id not in GPT_ALONE)
        for setting in _written_out(case, "settings"):  # arguments by name, which tell the function
            yield ", ".join(sorted(setting)), _fields(setting, True)
        for row in _written_out(case, "rows"):
            yield exercise.names[0], _fields(row, True)


def _written_out(case: Case, name: str) -> list[Mapping[str, Any]]:
    """What a case has of that name: nothing where it is a number, or a list of them."""
    found = case.params.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _fields(arguments: Mapping[str, Any], any_model: bool) -> dict[str, Any]:
    """The arguments, and the fields of a config as if they were some, where any model may be asked about."""
    found = {name: value for name, value in arguments.items() if not isinstance(value, dict)}
    for name, config in arguments.items():
        if isinstance(config, dict) and any_model:
            found |= {f"{name}.{key}": v for key, v in config.items() if key not in OF_LATER_MODELS}
    return found


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
