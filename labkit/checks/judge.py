"""Runs an exercise's cases through whatever runs jobs, and turns the evidence into points. Never runs
student code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Property
from labkit.checks.files import RunRequest
from labkit.checks.jobs import (
    STILL_A_STUB,
    Outcome,
    RunJob,
    cases_of_jobs,
    run_cases,
)
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.submission import Submission

LONGEST_TEXT = 800  # characters of what is shown as expected or seen
NOT_REACHED = "not reached: no case gave evidence for it"
UNREADABLE = (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Noted:
    """A finding, with the property it is about and the case it was made in, as a student is told."""

    property: str
    finding: Finding
    case: str


def judge_exercise(
    exercise: Exercise, cases: Sequence[Case], submission: Submission, own_parts: Submission, run_job: RunJob
) -> Report:
    """Run the cases and say which properties hold.

    run_job: runs the request in a directory on ranks (labkit.checks.execute.run_rank on each) and returns
        how it failed, if it did. Raises CouldNotBeGraded when a job failed through no fault of the
        student's.
    """
    if not submission.found:
        return not_attempted(exercise, submission)
    inputs = {case.name: draw_inputs(exercise, case) for case in cases}
    handed = {case.name: _handed(exercise, case, inputs[case.name]) for case in cases}
    outcomes: dict[str, Outcome] = {}
    for together in cases_of_jobs(cases):
        request = RunRequest(
            exercise.id, together, submission, own_parts, together[0].ranks, _seconds(together)
        )
        outcomes.update(run_cases(request, handed, run_job))
    noted = [n for case in cases for n in _noted(exercise, case, inputs[case.name], outcomes[case.name])]
    return _report(exercise, noted, outcomes)


def draw_inputs(exercise: Exercise, case: Case) -> Inputs:
    """The case's tensors: the same for the same exercise, case and seed, on every machine."""
    digest = hashlib.sha256(f"{exercise.id}/{case.name}/{case.seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return exercise.run_of(case).inputs(case, generator)


def _handed(exercise: Exercise, case: Case, inputs: Inputs) -> list[Inputs]:
    """What each rank is handed."""
    return [exercise.run_of(case).hand(case, inputs, rank) for rank in range(case.ranks)]


def _noted(exercise: Exercise, case: Case, inputs: Inputs, outcome: Outcome) -> Iterator[Noted]:
    shown = exercise.shown_by(case)
    if outcome.failure is not None:
        for name in shown:
            yield Noted(name, Finding(False, seen=outcome.failure.message), _told(case))
        return
    for rank, about, error in ((a.rank, n, e) for a in outcome.answers for n, e in a.errors.items()):
        name = about if about in shown else shown[0]
        yield Noted(name, Finding(False, seen=str(error), rank=rank), _told(case))
    evidence = exercise.run_of(case).evidence(case, inputs, outcome.answers)
    for name, judge in exercise.judges_of(case):
        try:
            yield from (Noted(name, finding, _told(case)) for finding in judge(evidence))
        except UNREADABLE as problem:
            if name in shown and not any(answer.errors for answer in outcome.answers):
                yield Noted(name, _unreadable(problem), _told(case))


def _unreadable(problem: Exception) -> Finding:
    """A judge that trips over an answer speaks of the answer: references are tested never to trip it. (Where
    an error inside `attempt` is why an answer is missing, that has been told.)
    """
    return Finding(
        False, seen=f"an answer is missing or of the wrong kind: {type(problem).__name__}: {problem}"
    )


def _report(exercise: Exercise, noted: Sequence[Noted], outcomes: dict[str, Outcome]) -> Report:
    rows = [_row(rule, [n for n in noted if n.property == rule.name]) for rule in exercise.properties]
    failures = [o.failure for o in outcomes.values() if o.failure is not None]
    verdict: str = "passed" if all(r.passed for r in rows) else "failed"
    if verdict == "failed" and failures:
        everywhere = all(f.verdict == "not_attempted" for f in failures)
        verdict = next((f.verdict for f in failures if f.verdict != "not_attempted"), "failed")
        verdict = "not_attempted" if everywhere and not any(r.passed for r in rows) else verdict
    return Report(exercise.id, exercise.title, rows, verdict)


def _row(rule: Property, noted: Sequence[Noted]) -> PropertyResult:
    failed = [n for n in noted if not n.finding.passed]
    if noted and not failed:
        return PropertyResult(rule.name, rule.kind, rule.points, rule.points, True, rule.says)
    first = failed[0] if failed else Noted(rule.name, Finding(False, seen=NOT_REACHED), "")
    worst = first.finding
    return PropertyResult(
        rule.name,
        rule.kind,
        0,
        rule.points,
        False,
        rule.says,
        worst.expected[:LONGEST_TEXT],
        worst.seen[:LONGEST_TEXT],
        worst.rank,
        first.case,
        "" if worst.seen.startswith(STILL_A_STUB) else rule.usual_cause,  # no hint before a first attempt
    )


def not_attempted(exercise: Exercise, submission: Submission) -> Report:
    """The report of an exercise whose names the notebook does not define."""
    why = next((p for p in submission.problems.values()), "")
    seen = f"no cell defines {' and '.join(exercise.names)}" + (f"; {why}" if why else "")
    rows = [
        PropertyResult(p.name, p.kind, 0, p.points, False, p.says, seen=seen) for p in exercise.properties
    ]
    return Report(exercise.id, exercise.title, rows, "error" if why else "not_attempted")


def _seconds(cases: Sequence[Case]) -> float:
    """A job's deadline: its slowest case, and a little for each of the others."""
    return max(c.timeout for c in cases) + 0.5 * len(cases)


def _told(case: Case) -> str:
    """How a case is named to a student: a hidden one only by its world size."""
    ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
    return f"an unseen case on {ranks}" if case.hidden else f"{case.name}, {ranks}"
