"""One exercise of each lesson: its reference, judged by its visible cases with tensors on the GPUs.

It is the one with most points among those that run on several ranks, where a lesson has such. Of the cases
whose ranks have a GPU each, the one with most ranks runs over NCCL: to wake CUDA takes a rank seconds. Of the
others one runs as a student's check does, over gloo on the CPU, and once more with its tensors on shared
GPUs, where gloo has fewer collectives: what fails there is told, and fails nothing. An exercise that cannot
be on GPUs says why, and runs on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.grade.reference import graded_lessons, graded_submission, solved_cells
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest
from labkit.checks.jobs import CouldNotBeGraded, JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import VISIBLE_SEED, run_on_host
from labkit.checks.report import Report
from labkit.hosts import gpu_count
from labkit.prove.result import Results, State


@dataclass(frozen=True)
class Place:
    """Where cases run. must_hold: whether a property that does not hold there is a failure."""

    backend: str
    device: str
    must_hold: bool = True

    def run(self, directory: Path, request: RunRequest) -> JobFailure | None:
        """A job there, as `judge_exercise` takes it."""
        return run_on_host(directory, request, self.backend, self.device)


ON_NCCL, ON_CPU, SHARED = Place("nccl", "cuda"), Place("gloo", ""), Place("gloo", "cuda", must_hold=False)

_MADE_ON_THE_CPU = "its check makes layers on the CPU, beside inputs that are on the GPU"
_ONE_BY_ONE = (
    "its messages are started one by one: over NCCL each would wait for the one before it, and ranks for "
    "each other"
)
NOT_ON_GPUS = {
    "03.overlapped-data-parallel": _MADE_ON_THE_CPU,
    "04.run-schedule": _MADE_ON_THE_CPU,
    "05.checkpoint": _MADE_ON_THE_CPU,
    "09.train-3d": _ONE_BY_ONE,
    "10.make-it-fast": _MADE_ON_THE_CPU,
}


def main(results: Results) -> None:
    """A row for each lesson and place."""
    for lesson in graded_lessons():
        exercise = largest(registry.exercises(lesson[:2]))
        if why := NOT_ON_GPUS.get(exercise.id):
            results.add(f"{exercise.id}, on GPUs", "skipped", why)
        for place, cases in _cases_of(exercise).items():
            _judge(results, exercise, place, cases)


def largest(exercises: Sequence[Exercise]) -> Exercise:
    """The exercise with most points, of those on several ranks if there are any."""
    several = [e for e in exercises if any(case.ranks > 1 for case in e.cases(VISIBLE_SEED))]
    return max(several or exercises, key=lambda e: sum(p.points for p in e.properties))


def _cases_of(exercise: Exercise) -> dict[Place, list[Case]]:
    cases, gpus = exercise.cases(VISIBLE_SEED), gpu_count()
    if exercise.id in NOT_ON_GPUS:
        return {ON_CPU: cases[:1]}
    fits = sorted((case for case in cases if case.ranks <= gpus), key=lambda case: -case.ranks)[:1]
    other = [case for case in cases if case.ranks > gpus][:1]
    return {place: chosen for place, chosen in ((ON_NCCL, fits), (ON_CPU, other), (SHARED, other)) if chosen}


def _judge(results: Results, exercise: Exercise, place: Place, cases: Sequence[Case]) -> None:
    submission, own = graded_submission(list(solved_cells(exercise.lesson)), exercise)
    began = time.monotonic()
    name = f"{exercise.id}, {place.backend} on {place.device or 'the CPU'}, {len(cases)} cases"
    try:
        report = judge_exercise(exercise, cases, submission, own, place.run)
    except CouldNotBeGraded as problem:
        results.add(name, "failed", str(problem).splitlines()[0])
        return
    wrong = _wrong(exercise, cases, report)
    took = time.monotonic() - began
    says = "; ".join(wrong)[:600] or f"every property holds, {took:.1f} s"
    state: State = "passed" if not wrong else "failed" if place.must_hold else "measured"
    results.add(name, state, says, seconds=took)


def _wrong(exercise: Exercise, cases: Sequence[Case], report: Report) -> list[str]:
    """The properties that these cases show and that do not hold, and what ended a case."""
    shown = {name for case in cases for name in exercise.looked_at_in(case)}
    rows = [f"{row.name}: {row.seen}" for row in report.rows if row.name in shown and not row.passed]
    return [*(stop.text.strip().splitlines()[-1] for stop in report.stops), *rows]
