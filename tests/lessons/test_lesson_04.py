"""Lesson 04: a mistake costs what it breaks and nothing else, and is told as what it is."""

from __future__ import annotations

import pytest
from lesson_grading import lost, report_of

from labkit.checks import registry

EXERCISES = registry.exercises("04")
RUN = registry.exercise("04.run-schedule")


def test_a_broken_in_turn_costs_the_interleaved_schedule_only_its_own_parts() -> None:
    interleaved = registry.exercise("04.interleaved-schedule")
    report = report_of("04", "1f1b-no-cool-down", interleaved)
    assert lost(report) == {"own-parts"}, report


@pytest.mark.days
def test_unsummed_halves_of_a_tied_weight_cost_nothing_else() -> None:
    report = report_of("04", "P19-tied-not-summed")
    assert lost(report) == {"tied-embedding"}, report
    assert "stage 0.embedding" in report.row("tied-embedding").message


@pytest.mark.days
def test_equal_weights_for_unequal_micro_batches_cost_nothing_else() -> None:
    assert lost(report_of("04", "mean-of-means")) == {"unequal-micro-batches"}


@pytest.mark.days
def test_sends_that_block_are_a_deadlock_that_names_both_ranks() -> None:
    """GPipe survives them; whatever has two neighbours send to each other does not."""
    report = report_of("04", "P10-blocking-send")
    assert report.verdict == "deadlock"
    assert lost(report) == {"any-schedule", "in-flight"}, report
    assert any("rank 0 waits in send to rank 1" in stop.text for stop in report.stops)


def test_a_blocked_schedule_is_told_by_rank_and_action() -> None:
    message = report_of("04", "1f1b-backward-before-forward").row("no-deadlock").message
    assert "rank 3 is blocked at B0 on stage 3" in message
    assert "stands further down in its own list" in message


@pytest.mark.days
def test_an_order_of_its_own_is_told_by_action() -> None:
    message = report_of("04", "own-schedule").row("follows-the-list").message
    assert "number 1 is backward of micro-batch 0" in message, message


def test_every_exercise_that_runs_ranks_shows_three_kinds_of_evidence() -> None:
    assert {p.kind for p in RUN.properties} == {"numbers", "mechanism", "robustness"}
