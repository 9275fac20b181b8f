"""How a solution works is worth nothing without what it computes, in the very run that is measured: a cheap
way that is taken only there must not earn the points of the right one.

Of lessons 02, 03 and 05, whose checks measure memory, copies and overlap in cases of a kind of their own.
What an exercise answers in plain numbers (parts, indices, seconds) is what its judges take apart, and not
spoiled here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from lesson_grading import graded, lost

from autograder.grade.reference import all_cases, solved_cells
from labkit.checks import judge, registry
from labkit.checks.case import Inputs, RankAnswer
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest
from labkit.checks.jobs import Outcome, RunJob, run_cases
from labkit.checks.practice import VISIBLE_SEED

LESSONS = ("02", "03", "05")
PLAIN_NUMBERS = (
    "02.partition-layers",
    "02.step-seconds",
    "03.shard-indices",
    "03.assign-buckets",
)
MEASURED = {  # kinds of cases in which little else is judged: there each property hangs on the numbers
    ("02.offloaded-model", "watched"),
    ("02.offloaded-model", "watched-frozen"),
    ("02.offloaded-model", "watched-buffers"),
    ("02.offloaded-model", "late"),
    ("03.overlapped-data-parallel", "many"),
    ("05.checkpoint", "measured"),
    ("05.checkpoint", "measured-data"),
    ("05.checkpoint", "measured-buffer"),
    ("05.checkpoint", "nested"),
    ("05.checkpoint-sequential", "bytes"),
}
# Pinned memory is seen before anything runs: with frozen layers that is all of it.
SEEN_AT_REST = {("watched-frozen", "weights-fetched")}


def _mechanisms() -> list[tuple[Exercise, str]]:
    """The kinds of cases that properties of how it is done are judged on."""
    exercises = [e for lesson in LESSONS for e in registry.exercises(lesson) if e.id not in PLAIN_NUMBERS]
    kinds = {(e, kind) for e in exercises for p in e.properties if p.kind == "mechanism" for kind in p.on}
    measured = {(registry.exercise(name), kind) for name, kind in MEASURED}
    return sorted(kinds | measured, key=lambda one: (one[0].id, one[1]))


def _spoiled(request: RunRequest, handed: Mapping[str, list[Inputs]], run_job: RunJob) -> dict[str, Outcome]:
    """What the cases gave, with other numbers in place of each that was computed."""
    outcomes = run_cases(request, handed, run_job)
    return {
        name: replace(outcome, answers=list(map(_other, outcome.answers)))
        for name, outcome in outcomes.items()
    }


def _other(answer: RankAnswer) -> RankAnswer:
    return replace(
        answer,
        tensors={n: ~t if t.dtype == torch.bool else t + t.abs() + 1 for n, t in answer.tensors.items()},
    )


@pytest.mark.parametrize(("exercise", "kind"), _mechanisms(), ids=lambda one: getattr(one, "id", one))
def test_wrong_numbers_cost_points_where_it_is_measured(
    exercise: Exercise, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = min((c for c in all_cases(exercise, VISIBLE_SEED) if c.kind == kind), key=lambda c: c.ranks)
    monkeypatch.setattr(judge, "run_cases", _spoiled)
    gone = lost(graded(exercise, list(solved_cells(exercise.lesson)), [case]))
    if (exercise.id, kind) in MEASURED:
        hang_on_it = {name for name in exercise.shown_by(case) if (kind, name) not in SEEN_AT_REST}
        assert gone >= hang_on_it
    else:
        assert gone & {p.name for p in exercise.properties if kind in p.on}
