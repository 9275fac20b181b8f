"""Lesson 02: a mistake costs what it breaks and nothing else, and is told as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from random import Random

import pytest

from autograder.mutants import mutants
from autograder.reference import graded_submission, reference_cells
from labkit.checks import registry
from labkit.checks.exercise import Case, Exercise
from labkit.checks.judge import judge_exercise
from labkit.checks.partitions import smallest_maximum
from labkit.checks.practice import run_on_host
from labkit.checks.report import Report
from labkit.checks.submission import Cell

EXERCISES = registry.exercises("02")
ids = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)


def graded(exercise: Exercise, cells: list[Cell], cases: list[Case]) -> Report:
    submission, own_parts = graded_submission(cells, exercise)
    return judge_exercise(exercise, cases, submission, own_parts, run_on_host)


def cells_with(exercise_id: str, change: Callable[[str], str]) -> list[Cell]:
    """The reference notebook, with the source of one exercise's cell changed."""
    return [
        replace(cell, source=change(cell.source)) if cell.exercise == exercise_id else cell
        for cell in reference_cells("02")
    ]


def report_of(mutant_id: str) -> Report:
    """The whole visible report of a mutant."""
    broken = next(m for m in mutants("02") if m.id == mutant_id)
    exercise = registry.exercise(broken.exercise)
    return graded(exercise, cells_with(broken.exercise, broken.apply), exercise.cases(1))


def lost(report: Report) -> set[str]:
    return {row.name for row in report.rows if not row.passed}


@pytest.mark.parametrize(
    ("mutant_id", "expected"),
    [
        ("greedy", {"smallest-maximum"}),
        ("F9", {"first-step"}),
        ("L1c", {"boundary-crossings"}),
        ("ties-move", {"tied-parameters"}),
        ("buffers-stay", {"buffers-move"}),
        ("L6", {"waits-for-copies"}),
        ("L6c", {"waits-for-copies"}),
        ("no-prefetch", {"prefetch"}),
        ("buffers-at-home", {"buffers"}),
        ("kept-for-backward", {"peak-memory"}),
        ("sent-twice", {"messages", "subgroup", "without-gradients"}),
        ("shape-remembered", {"shapes-may-change"}),
    ],
)
def test_a_mistake_costs_nothing_else(mutant_id: str, expected: set[str]) -> None:
    report = report_of(mutant_id)
    assert lost(report) <= expected, report


def test_a_copy_read_too_early_is_told_as_such() -> None:
    row = report_of("L6").row("waits-for-copies")
    assert "not finite" in row.message
    assert "wait_event" in row.message


def test_the_smallest_maximum_is_the_best_of_all_cuts() -> None:
    draw = Random(2)
    for _ in range(60):
        costs = [draw.randint(0, 9) for _ in range(draw.randint(0, 7))]
        devices = draw.randint(1, 4)
        every = combinations_with_replacement(range(len(costs) + 1), devices - 1)
        ends = [(0, *cuts, len(costs)) for cuts in every]
        best = min(max(sum(costs[a:b]) for a, b in pairwise(e)) for e in ends)
        assert smallest_maximum(costs, devices) == best


def test_every_property_explains_itself() -> None:
    silent = [(e.id, p.name) for e in EXERCISES for p in e.properties if not (p.says and p.usual_cause)]
    assert silent == []


@ids
def test_every_exercise_shows_several_kinds_of_evidence(exercise: Exercise) -> None:
    kinds = {p.kind for p in exercise.properties}
    assert kinds >= {"numbers", "mechanism"}
    assert "robustness" in kinds or exercise.id == "02.step-seconds"


def test_every_property_is_broken_by_some_mutant() -> None:
    """A property that no mistake loses would be points for nothing."""
    broken = {(m.exercise, name) for m in mutants("02") for name in m.breaks}
    owned = {(e.id, p.name) for e in EXERCISES for p in e.properties}
    assert owned - broken == set()
