"""What wrong answers earn on all cases, and which of those that keep most have a word said for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autograder.grade.harness import Graded
from autograder.grade.reference import all_cases, graded_submission
from autograder.selftest.thorough import SPECIAL, fair, told
from autograder.selftest.trials import Row, Trial, trials
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import run_on_host

EXERCISE = "00.bus-bandwidth"


def _row(trial: Trial) -> Row:
    """The trial graded on all cases of its exercise, which asks for numbers alone."""
    submission, own_parts = graded_submission(list(trial.cells), trial.exercise)
    cases = all_cases(trial.exercise, trial.seed)
    return Row(trial, Graded(judge_exercise(trial.exercise, cases, submission, own_parts, run_on_host)))


@pytest.fixture(scope="module")
def row() -> Row:
    """A wrong answer that loses something, and for which nothing is said."""
    return _row(replace(next(t for t in trials("00", [1], [EXERCISE]) if t.says), keeps=""))


def _without(row: Row, kind: str) -> Row:
    """The same, having lost one property alone: the first of a kind, at a hundredth of all points."""
    rows = [replace(r, passed=True, points=99.0, max_points=99.0) for r in row.graded.report.rows]
    at = next(i for i, r in enumerate(rows) if r.kind == kind)
    rows[at] = replace(rows[at], passed=False, points=0.0, max_points=1.0)
    return replace(row, graded=Graded(replace(row.graded.report, rows=rows)))


def test_what_its_file_says_is_why(row: Row) -> None:
    said = replace(row, trial=replace(row.trial, keeps="it is nearly right"))
    assert fair(said) == "it is nearly right"


def test_special_cases_have_points_of_their_own(row: Row) -> None:
    assert fair(_without(row, "robustness")) == SPECIAL
    assert fair(_without(row, "numbers")) == ""


def test_those_that_keep_most_come_last_and_are_counted(row: Row) -> None:
    unsaid = _without(row, "numbers")
    *lines, count = told([unsaid, row, _without(row, "robustness")])
    assert [SPECIAL in line for line in lines].count(True) == 1
    assert SPECIAL not in lines[0]
    assert count.startswith("2 of 3 wrong answers keep more than 80%, 1 of them without a word why")
