"""Lesson 06: a mistake costs what it breaks and nothing else, and is told as what it is.

Every test starts ranks, through the executor that `labkit.check` uses, on what the grader would run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from lesson_grading import graded

from autograder.grade.reference import solved_cells
from autograder.selftest.wrong_answers import WrongAnswer, wrong_answers
from labkit.checks import registry
from labkit.checks.source.submission import Cell

EXERCISES = registry.exercises("06")


def with_mistake(answer: WrongAnswer) -> list[Cell]:
    """The solved notebook, with the mistake in its exercise's cell."""
    return [
        replace(cell, source=answer.apply(cell.source)) if cell.exercise == answer.exercise else cell
        for cell in solved_cells("06")
    ]


def answer_called(name: str) -> WrongAnswer:
    return next(answer for answer in wrong_answers("06") if answer.id == name)


def test_a_mistake_in_g_costs_the_mlp_only_its_own_parts() -> None:
    broken = answer_called("T2-no-reduce-in-forward")
    mlp = registry.exercise("06.tensor-parallel-mlp")
    report = graded(mlp, with_mistake(broken), mlp.cases(1))
    assert [row.name for row in report.rows if not row.passed] == ["own-parts"], report


def test_a_failure_says_what_where_and_why() -> None:
    broken = answer_called("T1-column-without-f")
    exercise = registry.exercise(broken.exercise)
    report = graded(exercise, with_mistake(broken), exercise.cases(1))
    lost = {row.name: row.message for row in report.rows if not row.passed}
    assert set(lost) == {"input-gradients", "communication", "gather-output", "any-layout"}, report
    assert "backward: no communication" in lost["communication"]
    assert "backward: all_reduce of 120 bytes" in lost["communication"]  # x is [3, 5] float64
    assert "on rank 0" in lost["input-gradients"]
    assert "f is missing" in lost["input-gradients"]


@pytest.mark.parametrize(
    ("mistake", "lost"), [("f-flattens", "any-layout"), ("gather-on-the-world", "subgroup")]
)
def test_an_error_in_a_special_case_costs_only_what_the_case_is_about(mistake: str, lost: str) -> None:
    broken = answer_called(mistake)
    exercise = registry.exercise(broken.exercise)
    report = graded(exercise, with_mistake(broken), exercise.cases(1))
    assert [row.name for row in report.rows if not row.passed] == [lost], report


def test_there_are_all_kinds_of_evidence() -> None:
    assert {kind for e in EXERCISES for kind in (p.kind for p in e.properties)} == {
        "numbers",
        "mechanism",
        "robustness",
    }


def test_every_property_is_broken_by_some_wrong_answer() -> None:
    """A property that no mistake loses would be points for nothing. `own-parts` has a test of its own."""
    broken = {(m.exercise, name) for m in wrong_answers("06") for name in m.breaks}
    owned = {(e.id, p.name) for e in EXERCISES for p in e.properties if p.name != "own-parts"}
    assert owned - broken == set()
