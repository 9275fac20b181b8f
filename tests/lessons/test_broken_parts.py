"""A mistake in an earlier exercise costs a later one nothing but its own parts."""

from __future__ import annotations

import pytest
from lesson_grading import lost, report_of

from labkit.checks import registry

pytestmark = pytest.mark.days()

# A wrong answer to an earlier exercise, by lesson, and the exercise that builds on it.
BROKEN_EARLIER = [
    ("07", "T11-own-is-shared", "07.initial-weights"),
    ("08", "shard-by-parameter", "08.sharded-optimizer"),
    ("10", "sums-of-lengths", "10.step-breakdown"),
    ("11", "shares-swapped", "11.blockwise-attention"),
    ("12", "by-rank", "12.reduce-gradients"),
]


@pytest.mark.parametrize(("lesson", "answer", "later"), BROKEN_EARLIER)
def test_a_mistake_in_an_earlier_part_costs_only_own_parts(lesson: str, answer: str, later: str) -> None:
    report = report_of(lesson, answer, registry.exercise(later))
    assert lost(report) == {"own-parts"}, report
