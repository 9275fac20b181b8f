"""Runs an exercise's cases through whatever runs jobs, and turns the evidence into points. Never runs
student code.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.checks.exercise import Case, Exercise, Finding, Inputs, RankAnswer, StudentError
from labkit.checks.files import BadAnswer, RunRequest, read_answers, reported_errors, write_request
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.submission import Submission

LONGEST_TEXT = 800  # characters of what is shown as expected or seen
MOST_FAILED_JOBS = 3  # of one exercise and world size: after that the remaining cases are not started
NOT_REACHED = "not reached: no case gave evidence for it"
STILL_A_STUB = "raise NotImplementedError is still in place"


@dataclass(frozen=True)
class JobFailure:
    """How a job ended when it did not run to its end.

    verdict: error, not_attempted, timeout, deadlock, out_of_memory, killed, or could_not_be_graded (not the
        student's).
    """

    verdict: str
    message: str


class CouldNotBeGraded(Exception):
    """The host failed, not the student: no verdict, no points, to be run again."""


RunJob = Callable[[Path, RunRequest], JobFailure | None]


@dataclass
class Outcome:
    """What became of one case."""

    answers: list[RankAnswer]
    failure: JobFailure | None = None


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
    by_ranks: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_ranks[case.ranks].append(case)
    outcomes: dict[str, Outcome] = {}
    for ranks, group in by_ranks.items():
        request = RunRequest(exercise.id, group, submission, own_parts, ranks, _seconds(group))
        outcomes.update(run_cases(request, inputs, run_job))
    findings = [
        f for case in cases for f in _findings(exercise, case, inputs[case.name], outcomes[case.name])
    ]
    return _report(exercise, findings, outcomes)


def draw_inputs(exercise: Exercise, case: Case) -> Inputs:
    """The case's tensors: the same for the same exercise, case and seed, on every machine."""
    digest = hashlib.sha256(f"{exercise.id}/{case.name}/{case.seed}".encode()).digest()
    return exercise.inputs(case, torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))


def run_cases(request: RunRequest, inputs: dict[str, Inputs], run_job: RunJob) -> dict[str, Outcome]:
    """Run a request's cases in as few jobs as it takes: after a failure the rest go on in a fresh job."""
    outcomes: dict[str, Outcome] = {}
    left, failed_jobs = list(request.cases), 0
    while left and failed_jobs < MOST_FAILED_JOBS:
        part = RunRequest(
            request.exercise, left, request.submission, request.own_parts, request.ranks, request.timeout
        )
        done, failure = _run_once(part, {c.name: inputs[c.name] for c in left}, run_job)
        outcomes.update(done)
        if failure is not None:
            failed_jobs += 1
            stopped_in = next((c for c in left if c.name not in outcomes), left[-1])
            outcomes[stopped_in.name] = Outcome([], failure)
        left = [c for c in left if c.name not in outcomes]
    for case in left:
        outcomes[case.name] = Outcome([], JobFailure("failed", "not run: too many earlier cases did not end"))
    return outcomes


def _run_once(
    request: RunRequest, inputs: dict[str, Inputs], run_job: RunJob
) -> tuple[dict[str, Outcome], JobFailure | None]:
    with tempfile.TemporaryDirectory(prefix="labkit-check-") as name:
        directory = Path(name)
        write_request(request, inputs, directory)
        failure = run_job(directory, request)
        if failure is not None and failure.verdict == "could_not_be_graded":
            raise CouldNotBeGraded(failure.message)
        try:
            return _read(directory, request, failure)
        except BadAnswer as problem:
            return {}, JobFailure("error", str(problem))


def _read(
    directory: Path, request: RunRequest, failure: JobFailure | None
) -> tuple[dict[str, Outcome], JobFailure | None]:
    outcomes = {}
    for name, found in read_answers(directory, request).items():
        outcomes[name] = Outcome(found.answers, _first_error(found.errors))
    missing = [i for i, case in enumerate(request.cases) if case.name not in outcomes]
    if missing and failure is None:
        return outcomes, JobFailure("error", "the ranks ended before the case did, without an error")
    if missing and failure is not None and failure.verdict == "error":
        own_words = _first_error(reported_errors(directory, missing[0], request.ranks))
        return outcomes, own_words or failure
    return outcomes, failure if missing else None


def _first_error(errors: dict[int, StudentError]) -> JobFailure | None:
    if not errors:
        return None
    rank = min(errors)
    others = "" if len(errors) == 1 else f" (and on {len(errors) - 1} more)"
    if errors[rank].type == "NotImplementedError":
        where = errors[rank].where.partition(": ")[0]  # the line itself says nothing more
        return JobFailure("not_attempted", f"{STILL_A_STUB} ({where})")
    return JobFailure("error", f"rank {rank}{others}: {errors[rank]}")


def _findings(exercise: Exercise, case: Case, inputs: Inputs, outcome: Outcome) -> Iterable[Finding]:
    if outcome.failure is not None:
        for name in case.properties or [p.name for p in exercise.properties]:
            yield Finding(name, False, seen=outcome.failure.message, case=_told(case))
        return
    for rank, name, error in ((a.rank, n, e) for a in outcome.answers for n, e in a.errors.items()):
        yield Finding(name, False, seen=str(error), rank=rank, case=_told(case))
    try:
        for f in exercise.judge(case, inputs, outcome.answers):
            exercise.property(f.property)
            yield Finding(f.property, f.passed, f.expected, f.seen, f.rank, _told(case))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as problem:
        yield from _unreadable(exercise, case, outcome, problem)


def _unreadable(exercise: Exercise, case: Case, outcome: Outcome, problem: Exception) -> Iterable[Finding]:
    """A judge that trips over an answer speaks of the answer: references are tested never to trip it."""
    if any(answer.errors for answer in outcome.answers):
        return  # the error inside `attempt` is why an answer is missing, and has been told
    seen = f"an answer is missing or of the wrong kind: {type(problem).__name__}: {problem}"
    for name in case.properties or [p.name for p in exercise.properties]:
        yield Finding(name, False, seen=seen, case=_told(case))


def _report(exercise: Exercise, findings: Sequence[Finding], outcomes: dict[str, Outcome]) -> Report:
    rows = [_row(exercise, name, findings) for name in (p.name for p in exercise.properties)]
    failures = [o.failure for o in outcomes.values() if o.failure is not None]
    verdict: str = "passed" if all(r.passed for r in rows) else "failed"
    if verdict == "failed" and failures:
        everywhere = all(f.verdict == "not_attempted" for f in failures)
        verdict = next((f.verdict for f in failures if f.verdict != "not_attempted"), "failed")
        verdict = "not_attempted" if everywhere and not any(r.passed for r in rows) else verdict
    return Report(exercise.id, exercise.title, rows, verdict)


def _row(exercise: Exercise, name: str, findings: Sequence[Finding]) -> PropertyResult:
    rule = exercise.property(name)
    about = [f for f in findings if f.property == name]
    failed = [f for f in about if not f.passed]
    if about and not failed:
        return PropertyResult(name, rule.kind, rule.points, rule.points, True, rule.says)
    worst = failed[0] if failed else Finding(name, False, seen=NOT_REACHED)
    return PropertyResult(
        name,
        rule.kind,
        0,
        rule.points,
        False,
        rule.says,
        worst.expected[:LONGEST_TEXT],
        worst.seen[:LONGEST_TEXT],
        worst.rank,
        worst.case,
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
