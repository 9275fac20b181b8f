"""Right answers written another way than the reference earn every point.

One of every sixteenth exercise in turn, by the day, in its own exercise and in a third of those that build on
it; `make thorough` tries all of them in all, under every sandbox.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from lesson_grading import graded
from turn import part_of, today

from autograder.grade.reference import all_cases, graded_lessons
from autograder.selftest import alternatives as module
from autograder.selftest.alternatives import Alternative, AlternativeError, alternatives
from labkit.checks.exercise import Exercise
from labkit.checks.practice import check_cells


def one_of_each(lesson: str, turn: int) -> list[Alternative]:
    """One alternative of each exercise that has some: another one the next turn."""
    by_exercise: dict[str, list[Alternative]] = defaultdict(list)
    for alternative in alternatives(lesson):
        by_exercise[alternative.exercise.id].append(alternative)
    return [found[turn % len(found)] for found in by_exercise.values()]


EXERCISES_IN_TURN = 16  # the days until each exercise was tried; then its next answer is
EACH = [a for lesson in graded_lessons() for a in one_of_each(lesson, today() // EXERCISES_IN_TURN)]
TODAY = part_of(EACH, EXERCISES_IN_TURN, today())
BUILT_ON_IT = [(a, exercise) for a in TODAY for exercise in a.graded if exercise.id != a.exercise.id]
GRADED = [*((answer, answer.exercise) for answer in TODAY), *part_of(BUILT_ON_IT, 3, today())]
SEED = 7

pytestmark = pytest.mark.timeout(400)  # all cases of an exercise, on a busy machine


@pytest.mark.parametrize("answer", TODAY, ids=lambda a: f"{a.exercise.lesson}-{a.name}")
def test_it_earns_every_point_in_practice(answer: Alternative) -> None:
    """The visible cases, as a student runs them: with this answer in every exercise that uses it."""
    reports = [check_cells(exercise, list(answer.cells)) for exercise in answer.graded]
    lost = [report for report in reports if not report.passed]
    assert lost == [], "\n".join(map(repr, lost))


@pytest.mark.parametrize(
    ("answer", "exercise"),
    [
        pytest.param(a, exercise, id=f"{a.exercise.lesson}-{a.name}-in-{exercise.id}")
        for a, exercise in GRADED
    ],
)
def test_it_earns_every_point_when_graded(answer: Alternative, exercise: Exercise) -> None:
    """In its own exercise and in those that build on it."""
    report = graded(exercise, list(answer.cells), all_cases(exercise, SEED))
    assert report.passed, report


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
