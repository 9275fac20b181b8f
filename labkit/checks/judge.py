"""Runs an exercise's cases through whatever runs jobs, and turns the evidence into points. Never runs
student code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from labkit.checks.case import Case, Inputs
from labkit.checks.compare import MISSING
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property
from labkit.checks.files import RunRequest
from labkit.checks.jobs import (
    Outcome,
    RunJob,
    cases_of_jobs,
    first_error,
    run_cases,
)
from labkit.checks.report import STOPPED, PropertyResult, Report, Stop
from labkit.checks.source.submission import ONLY_DEFINITIONS, Submission

LONGEST_TEXT = 800  # characters of what is shown as expected or seen
NOT_REACHED = "not reached: no case gave evidence for it"
LONGEST_STOP = 4000  # characters of an error; a deadlock's report has a line for each rank
MOST_PATIENCE = 4.0  # times what a job may take on an idle host
MOST_STOPS = 3  # of an exercise: one mistake may have an error of its own in each case
WHICH_RANKS = re.compile(r"^rank \d+( \(and on \d+ more\))?: ")
# Some of what is expected is drawn from torch's default generator, which the threads of a process share, and
# submissions are graded in threads: two judged at once would draw each other's numbers.
_ONE_AT_A_TIME = threading.Lock()
IN_WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 6: "six", 8: "eight"}  # ranks, in the names of cases
UNREADABLE = (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Noted:
    """A finding, with the property it is about and the case it was made in, as a student is told.

    judged: by the property's judge; where there was nothing to judge, no usual cause can be told.
    """

    property: str
    finding: Finding
    case: str
    judged: bool = True


def judge_exercise(
    exercise: Exercise,
    cases: Sequence[Case],
    submission: Submission,
    own_parts: Submission,
    run_job: RunJob,
    secret: str = "",
) -> Report:
    """Run the cases and say which properties hold.

    run_job: runs the request in a directory on ranks (labkit.checks.execute.run_rank on each) and returns
        how it failed, if it did. Raises CouldNotBeGraded when a job failed through no fault of the
        student's.
    secret: what the inputs are drawn from beside each case's own seed; it never travels, so that no rank can
        draw again what another is handed.
    """
    if not submission.found:
        return not_attempted(exercise, submission)
    with _ONE_AT_A_TIME:
        inputs = {case.name: draw_inputs(exercise, case, secret) for case in cases}
        handed = {case.name: _handed(exercise, case, inputs[case.name]) for case in cases}
    outcomes: dict[str, Outcome] = {}
    for together in cases_of_jobs(cases):
        request = RunRequest(
            exercise.id, together, submission, own_parts, together[0].ranks, _seconds(together)
        )
        outcomes.update(run_cases(request, handed, run_job))
    with _ONE_AT_A_TIME:
        return _judged(exercise, cases, inputs, outcomes)


def _judged(
    exercise: Exercise, cases: Sequence[Case], inputs: dict[str, Inputs], outcomes: dict[str, Outcome]
) -> Report:
    noted = [n for case in cases for n in _noted(exercise, case, inputs[case.name], outcomes[case.name])]
    stops = [stop for case in cases for stop in _stops(case, outcomes[case.name])]
    report = _report(exercise, noted, outcomes, stops)
    for case in cases if exercise.measures else []:
        report.measured |= _measured(exercise, case, inputs[case.name], outcomes[case.name])
    return report


def draw_inputs(exercise: Exercise, case: Case, secret: str = "") -> Inputs:
    """The case's tensors: the same for the same exercise, case, seed and secret, on every machine."""
    digest = hashlib.sha256(f"{exercise.id}/{case.name}/{case.seed}/{secret}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return exercise.run_of(case).inputs(case, generator)


def _handed(exercise: Exercise, case: Case, inputs: Inputs) -> list[Inputs]:
    """What each rank is handed."""
    return [exercise.run_of(case).hand(case, inputs, rank) for rank in range(case.ranks)]


def _stops(case: Case, outcome: Outcome) -> Iterator[Stop]:
    """What ended the case, or a part of it, before there was anything to compare."""
    if outcome.failure is not None and outcome.failure.verdict not in ("failed", "not_attempted"):
        yield Stop(outcome.failure.message[:LONGEST_STOP], _told(case))
    for name in dict.fromkeys(name for answer in outcome.answers for name in answer.errors):
        attempt = first_error({a.rank: a.errors[name] for a in outcome.answers if name in a.errors})
        if attempt is not None:
            yield Stop(attempt.message[:LONGEST_STOP], _told(case))


def _noted(exercise: Exercise, case: Case, inputs: Inputs, outcome: Outcome) -> Iterator[Noted]:
    shown, stopped = exercise.shown_by(case), any(_stops(case, outcome))
    if outcome.failure is not None:
        seen = STOPPED if stopped else outcome.failure.message
        yield from (Noted(name, Finding(False, seen=seen), _told(case), judged=False) for name in shown)
        return
    for about in (name for answer in outcome.answers for name in answer.errors):
        name = about if about in shown else shown[0]
        yield Noted(name, Finding(False, seen=STOPPED), _told(case), judged=False)
    evidence = exercise.run_of(case).evidence(case, inputs, outcome.answers)
    right = not stopped
    for name, judge in exercise.judges_of(case):
        for finding, judged in _found(judge, evidence, stopped):
            right = right and finding.passed
            yield Noted(name, finding, _told(case), judged)
    for name, judge in exercise.judges_besides(case) if right else []:
        yield from (
            Noted(name, finding, _told(case), judged) for finding, judged in _found(judge, evidence, stopped)
        )


def _found(judge: Judge, evidence: Evidence, stopped: bool) -> Iterator[tuple[Finding, bool]]:
    """What a judge finds, and whether it is that: where an error ended something, what is missing is lost to
    the error that has been told.
    """
    try:
        for finding in judge(evidence):
            lost = stopped and finding.seen == MISSING
            yield (Finding(False, seen=STOPPED) if lost else finding), not lost
    except UNREADABLE as problem:
        yield (Finding(False, seen=STOPPED) if stopped else _unreadable(problem)), not stopped


def _measured(exercise: Exercise, case: Case, inputs: Inputs, outcome: Outcome) -> dict[str, float]:
    """What the exercise measures in a visible case; nothing where the case did not end well, or cannot be
    measured: its properties say why.
    """
    measure = exercise.measures.get(case.kind)
    if measure is None or case.hidden or outcome.failure is not None:
        return {}
    evidence = exercise.run_of(case).evidence(case, inputs, outcome.answers)
    with contextlib.suppress(*UNREADABLE):
        return dict(measure(evidence))
    return {}


def _unreadable(problem: Exception) -> Finding:
    """A judge that trips over an answer speaks of the answer: references are tested never to trip it."""
    return Finding(
        False, seen=f"an answer is missing or of the wrong kind: {type(problem).__name__}: {problem}"
    )


def _report(
    exercise: Exercise, noted: Sequence[Noted], outcomes: dict[str, Outcome], stops: Sequence[Stop]
) -> Report:
    rows = [_row(rule, [n for n in noted if n.property == rule.name]) for rule in exercise.properties]
    failures = [o.failure for o in outcomes.values() if o.failure is not None]
    verdict: str = "passed" if all(r.passed for r in rows) else "failed"
    if verdict == "failed" and failures:
        everywhere = all(f.verdict == "not_attempted" for f in failures)
        verdict = next((f.verdict for f in failures if f.verdict != "not_attempted"), "failed")
        verdict = "not_attempted" if everywhere and not any(r.passed for r in rows) else verdict
    return Report(exercise.id, exercise.title, rows, verdict, stops=_told_once(stops))


def _told_once(stops: Sequence[Stop]) -> list[Stop]:
    """The first of those that differ in more than which ranks met them."""
    firsts: dict[str, Stop] = {}
    for stop in stops:
        firsts.setdefault(WHICH_RANKS.sub("", stop.text), stop)
    return list(firsts.values())[:MOST_STOPS]


def _row(rule: Property, noted: Sequence[Noted]) -> PropertyResult:
    failed = [n for n in noted if not n.finding.passed]
    if noted and not failed:
        return PropertyResult(rule.name, rule.kind, rule.points, rule.points, True, rule.says)
    judged = [n for n in failed if n.judged]
    never = Noted(rule.name, Finding(False, seen=NOT_REACHED), "", judged=False)
    first = next(iter([*judged, *failed]), never)
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
        rule.usual_cause if first.judged else "",
    )


def not_attempted(exercise: Exercise, submission: Submission) -> Report:
    """The report of an exercise whose names the notebook does not define."""
    left = [(n, submission.left_out[n]) for n in exercise.names if n in submission.left_out]
    where = [f"{n} is set in {at} by code that is not a definition; {ONLY_DEFINITIONS}" for n, at in left]
    why = next(iter((*where, *submission.problems.values())), "")
    seen = f"no cell defines {' and '.join(exercise.names)}" + (f"; {why}" if why else "")
    rows = [
        PropertyResult(p.name, p.kind, 0, p.points, False, p.says, seen=seen) for p in exercise.properties
    ]
    return Report(exercise.id, exercise.title, rows, "error" if why else "not_attempted")


def _seconds(cases: Sequence[Case]) -> float:
    """A job's deadline: its slowest case, and a little for each of the others; more on a busy host."""
    alone = max(c.timeout for c in cases) + 0.5 * len(cases)
    return alone * patience(os.getloadavg()[0], os.cpu_count() or 1)


def patience(load: float, cores: int) -> float:
    """How many times longer a job may take where so many programs want to run on so many cores."""
    return min(max(1.0, load / cores), MOST_PATIENCE)


def _told(case: Case) -> str:
    """How a case is named to a student: a hidden one only by its world size."""
    ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
    if case.hidden:
        return f"an unseen case on {ranks}"
    said = f"{IN_WORDS.get(case.ranks)} rank" in case.name
    return case.name if said else f"{case.name}, {ranks}"
