"""Memory is weighed on a notebook's ranks as it is where grading weighs it, whatever pages the host has."""

from __future__ import annotations

import pytest
import torch.distributed as dist

import labkit
from autograder.grade.reference import graded_submission, solved_cells
from labkit.checks import registry
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import run_on_host
from labkit.checks.shared.held import bytes_left

CHECKPOINT = registry.exercise("05.checkpoint")
FEW = 8192  # bytes: half of what a checkpoint may keep beside its inputs


def bytes_of_objects_that_are_gone(group: dist.ProcessGroup) -> int:
    """What is left of many small objects of many sizes, which nobody has any more."""
    return bytes_left(lambda: len([("x" * (number % 400), [number]) for number in range(20_000)]))


def test_small_objects_that_are_gone_weigh_nothing() -> None:
    job = labkit.launch(bytes_of_objects_that_are_gone, ranks=1, backend="gloo")
    assert abs(job.results[0]) < FEW


@pytest.mark.days
def test_the_reference_keeps_no_more_in_a_notebook() -> None:
    """In grading it is on record (`benchmarks/results/trials`)."""
    measured = [case for case in CHECKPOINT.cases(1) if case.kind.startswith("measured") and case.ranks == 1]
    submission, own_parts = graded_submission(solved_cells(CHECKPOINT.lesson), CHECKPOINT)
    report = judge_exercise(CHECKPOINT, measured, submission, own_parts, run_on_host)
    assert report.row("saved-bytes").passed, report
