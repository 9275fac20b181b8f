"""Right answers written another way than the reference earn every point.

One of every 32nd exercise in turn, by the day, in its own exercise and in a sixth of those that build on
it, as a student runs them; `make test` grades those that are not on record. `make thorough` tries all of them
in all, under every sandbox.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from lesson_grading import ON_RECORD, graded, is_on_record
from turn import SAMPLE, part_of, today

from autograder.grade.reference import all_cases, graded_lessons
from autograder.selftest import alternatives as module
from autograder.selftest.alternatives import Alternative, AlternativeError, alternatives
from autograder.selftest.trials import of_alternatives
from labkit.checks.exercise import Exercise
from labkit.checks.practice import check_cells


def one_of_each(lesson: str, turn: int) -> list[Alternative]:
    """One alternative of each exercise that has some: another one the next turn."""
    by_exercise: dict[str, list[Alternative]] = defaultdict(list)
    for alternative in alternatives(lesson):
        by_exercise[alternative.exercise.id].append(alternative)
    return [found[turn % len(found)] for found in by_exercise.values()]


EXERCISES_IN_TURN = 32  # the days until each exercise was tried; then its next answer is
EACH = [a for lesson in graded_lessons() for a in one_of_each(lesson, today() // EXERCISES_IN_TURN)]
TODAY = part_of(EACH, EXERCISES_IN_TURN, today())
BUILT_ON_IT = [(a, exercise) for a in TODAY for exercise in a.graded if exercise.id != a.exercise.id]
TRIED = [*((answer, answer.exercise) for answer in TODAY), *part_of(BUILT_ON_IT, 6, today())]
SEED = 7

pytestmark = pytest.mark.timeout(400)  # all cases of an exercise, on a busy machine

each_in_an_exercise = pytest.mark.parametrize(
    ("answer", "exercise"),
    [pytest.param(a, exercise, id=f"{a.exercise.lesson}-{a.name}-in-{exercise.id}") for a, exercise in TRIED],
)


@each_in_an_exercise
def test_it_earns_every_point_in_practice(answer: Alternative, exercise: Exercise) -> None:
    """The visible cases, as a student runs them: in its own exercise and in those that build on it."""
    report = check_cells(exercise, list(answer.cells))
    assert report.passed, report


@each_in_an_exercise
def test_it_earns_every_point_when_graded(answer: Alternative, exercise: Exercise) -> None:
    """The unseen cases too."""
    if SAMPLE in os.environ and _is_on_record(answer, exercise):
        pytest.skip(ON_RECORD)
    report = graded(exercise, list(answer.cells), all_cases(exercise, SEED))
    assert report.passed, report


def _is_on_record(answer: Alternative, exercise: Exercise) -> bool:
    tried = of_alternatives(answer.exercise.lesson, 1)
    return any(
        is_on_record(trial)
        for trial in tried
        if trial.exercise == exercise and trial.name == f"alternative {answer.name}"
    )


def test_each_has_its_turn() -> None:
    everything = {answer.name for answer in alternatives("06")}
    assert len(everything) > len(one_of_each("06", 0)) > 1
    turns = range(len(everything))
    assert {a.name for turn in turns for a in one_of_each("06", turn)} == everything


def test_a_name_that_fits_no_exercise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lesson_06" / "alternatives"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "LESSONS", tmp_path)
    (folder / "column-parallel-linear-other.py").write_text("x = 1\n")
    assert [a.exercise.id for a in alternatives("06")] == ["06.column-parallel-linear"]
    (folder / "some-parallel-linear.py").write_text("x = 1\n")
    with pytest.raises(AlternativeError, match=r"some-parallel-linear\.py"):
        alternatives("06")
