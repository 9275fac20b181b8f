"""Lesson 02: a mistake costs what it breaks and nothing else, and is told as what it is."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from lesson_grading import lost, report_of

from labkit.checks import registry
from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Exercise
from labkit.checks.lesson_02.fetching import Sizes, _copied_beside_the_work
from labkit.checks.lesson_02.partitions import smallest_maximum

pytestmark = pytest.mark.days()

EXERCISES = registry.exercises("02")
ids = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)


@pytest.mark.parametrize(
    ("answer_id", "expected"),
    [
        ("greedy", {"smallest-maximum"}),
        ("F9", {"first-step"}),
        ("L1c", {"boundary-crossings"}),
        ("ties-move", {"tied-parameters"}),
        ("buffers-stay", {"buffers-move"}),
        ("L6", {"waits-for-copies", "buffers"}),  # it does not wait for these either
        ("L6c", {"waits-for-copies", "buffers"}),
        ("no-prefetch", {"prefetch"}),
        ("buffers-at-home", {"buffers"}),
        ("kept-for-backward", {"peak-memory"}),
        ("sent-twice", {"messages", "subgroup", "without-gradients"}),
        ("shape-remembered", {"shapes-may-change"}),
    ],
)
def test_a_mistake_costs_nothing_else(answer_id: str, expected: set[str]) -> None:
    report = report_of("02", answer_id)
    assert lost(report) <= expected, report


def test_a_copy_read_too_early_is_told_as_such() -> None:
    row = report_of("02", "L6").row("waits-for-copies")
    assert "not finite" in row.message
    assert "wait_event" in row.message


BATCH, WEIGHT = ["cpu", "cuda:0", 64, 0, False, False], ["cpu", "cuda:0", 64, 1, True, True]


@pytest.mark.parametrize(
    ("copies", "aside"),
    [([BATCH, WEIGHT], True), ([WEIGHT, BATCH], True), ([WEIGHT, WEIGHT], True), ([BATCH, BATCH], False)],
)
def test_a_batch_of_the_size_of_weights_may_come_after_them(copies: list[list[object]], aside: bool) -> None:
    sizes = cast(Sizes, SimpleNamespace(x=64))
    answer = RankAnswer(0, {}, {"forward": copies}, {}, {})
    assert all(finding.passed for finding in _copied_beside_the_work(sizes, answer, "forward")) is aside


def test_the_smallest_maximum_is_the_best_of_all_cuts() -> None:
    draw = Random(2)
    for _ in range(60):
        costs = [draw.randint(0, 9) for _ in range(draw.randint(0, 7))]
        devices = draw.randint(1, 4)
        every = combinations_with_replacement(range(len(costs) + 1), devices - 1)
        ends = [(0, *cuts, len(costs)) for cuts in every]
        best = min(max(sum(costs[a:b]) for a, b in pairwise(e)) for e in ends)
        assert smallest_maximum(costs, devices) == best


@ids
def test_every_exercise_shows_several_kinds_of_evidence(exercise: Exercise) -> None:
    kinds = {p.kind for p in exercise.properties}
    assert kinds >= {"numbers", "mechanism"}
    assert "robustness" in kinds or exercise.id == "02.step-seconds"
