"""Lesson 04: a mistake costs what it breaks and nothing else, and is told as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autograder.mutants import mutants
from autograder.reference import graded_submission, reference_cells
from labkit.checks import registry
from labkit.checks.exercise import Case, Exercise
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import run_on_host
from labkit.checks.report import Report
from labkit.checks.submission import Cell

EXERCISES = registry.exercises("04")
RUN = registry.exercise("04.run-schedule")
ids = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)


def graded(exercise: Exercise, cells: list[Cell], cases: list[Case]) -> Report:
    submission, own_parts = graded_submission(cells, exercise)
    return judge_exercise(exercise, cases, submission, own_parts, run_on_host)


def cells_with(exercise_id: str, change: Callable[[str], str]) -> list[Cell]:
    """The reference notebook, with the source of one exercise's cell changed."""
    return [
        replace(cell, source=change(cell.source)) if cell.exercise == exercise_id else cell
        for cell in reference_cells("04")
    ]


def report_of(mutant_id: str) -> Report:
    """The whole visible report of a mutant."""
    broken = next(m for m in mutants("04") if m.id == mutant_id)
    exercise = registry.exercise(broken.exercise)
    return graded(exercise, cells_with(broken.exercise, broken.apply), exercise.cases(1))


def lost(report: Report) -> set[str]:
    return {row.name for row in report.rows if not row.passed}


def test_a_broken_in_turn_costs_the_interleaved_schedule_only_its_own_parts() -> None:
    broken = next(m for m in mutants("04") if m.id == "1f1b-no-cool-down")
    interleaved = registry.exercise("04.interleaved-schedule")
    report = graded(interleaved, cells_with(broken.exercise, broken.apply), interleaved.cases(1))
    assert lost(report) == {"own-parts"}, report


def test_unsummed_halves_of_a_tied_weight_cost_nothing_else() -> None:
    report = report_of("P19-tied-not-summed")
    assert lost(report) == {"tied-embedding"}, report
    assert "stage 0.embedding" in report.row("tied-embedding").message


def test_equal_weights_for_unequal_micro_batches_cost_nothing_else() -> None:
    assert lost(report_of("mean-of-means")) == {"unequal-micro-batches"}


def test_sends_that_block_are_a_deadlock_that_names_both_ranks() -> None:
    """GPipe survives them; whatever has two neighbours send to each other does not."""
    report = report_of("P10-blocking-send")
    assert report.verdict == "deadlock"
    assert lost(report) == {"any-schedule", "in-flight"}, report
    assert "rank 0 waits in send to rank 1" in report.row("any-schedule").message


def test_a_blocked_schedule_is_told_by_rank_and_action() -> None:
    message = report_of("1f1b-backward-before-forward").row("no-deadlock").message
    assert "rank 3 is blocked at B0 on stage 3" in message
    assert "stands further down in its own list" in message


def test_an_order_of_its_own_is_told_by_action() -> None:
    message = report_of("own-schedule").row("follows-the-list").message
    assert "number 1 is backward of micro-batch 0" in message, message


def test_every_property_explains_itself() -> None:
    silent = [(e.id, p.name) for e in EXERCISES for p in e.properties if not (p.says and p.usual_cause)]
    assert silent == []


def test_every_exercise_that_runs_ranks_shows_three_kinds_of_evidence() -> None:
    assert {p.kind for p in RUN.properties} == {"numbers", "mechanism", "robustness"}


def test_every_property_is_broken_by_some_mutant() -> None:
    """A property that no mistake loses would be points for nothing. `own-parts` has a test of its own."""
    broken = {(m.exercise, name) for m in mutants("04") for name in m.breaks}
    owned = {(e.id, p.name) for e in EXERCISES for p in e.properties if p.name != "own-parts"}
    assert owned - broken == set()
