"""Lesson 06: a mistake costs what it breaks and nothing else, and is told as what it is.

Every test starts ranks, through the executor that `labkit.check` uses, on what the grader would run.
"""

from __future__ import annotations

import pytest
from lesson_grading import lost, report_of

from labkit.checks import registry

EXERCISES = registry.exercises("06")


@pytest.mark.days
def test_a_mistake_in_g_costs_the_mlp_only_its_own_parts() -> None:
    report = report_of("06", "T2-no-reduce-in-forward", registry.exercise("06.tensor-parallel-mlp"))
    assert lost(report) == {"own-parts"}, report


@pytest.mark.days
def test_a_failure_says_what_where_and_why() -> None:
    report = report_of("06", "T1-column-without-f")
    assert lost(report) == {"input-gradients", "communication", "gather-output", "any-layout"}, report
    communication = report.row("communication").message
    assert "backward: no communication" in communication
    assert "backward: all_reduce of 120 bytes" in communication  # x is [3, 5] float64
    gradients = report.row("input-gradients").message
    assert "on rank 0" in gradients
    assert "f is missing" in gradients


@pytest.mark.days
@pytest.mark.parametrize(
    ("mistake", "only"), [("f-flattens", "any-layout"), ("gather-on-the-world", "subgroup")]
)
def test_an_error_in_a_special_case_costs_only_what_the_case_is_about(mistake: str, only: str) -> None:
    report = report_of("06", mistake)
    assert lost(report) == {only}, report


def test_there_are_all_kinds_of_evidence() -> None:
    assert {kind for e in EXERCISES for kind in (p.kind for p in e.properties)} == {
        "numbers",
        "mechanism",
        "robustness",
    }
