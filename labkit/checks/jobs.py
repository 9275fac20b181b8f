"""Runs cases as jobs of ranks, through whatever runs jobs, and says what became of each. Never runs student
code.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.checks.case import Case, Inputs, RankAnswer, StudentError
from labkit.checks.files import (
    BadAnswer,
    RunRequest,
    read_answers,
    reported_errors,
    was_begun,
    write_request,
)

MOST_FAILED_JOBS = 3  # of one exercise and world size: after that the remaining cases are not started
STILL_A_STUB = "raise NotImplementedError is still in place"
# How a rank tells that another one has gone: never the cause of a failure.
AFTER_ANOTHERS = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|Socket closed|"
    r"Timed out waiting|Application timeout|wait timeout|Failed to recv"
)
Handed = Mapping[str, Sequence[Inputs]]  # case name -> what each rank is handed


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


def cases_of_jobs(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that may share a job: those of one world size. Cases with the student's own parts run in a
    job of theirs, where nothing of the reference has ever been loaded, and unseen cases in one that tells
    less, as nothing of them has ever been in the others.
    """
    jobs: dict[tuple[int, bool, bool], list[Case]] = defaultdict(list)
    for case in cases:
        jobs[case.ranks, case.own_parts, case.hidden].append(case)
    return list(jobs.values())


def run_cases(request: RunRequest, handed: Handed, run_job: RunJob) -> dict[str, Outcome]:
    """Run a request's cases in as few jobs as it takes: after a failure the rest go on in a fresh job.

    A failure is held against the first case without an answer if some rank had begun it, and otherwise
    against none. What nobody began is run again, and so is what was answered in that job: an answer counts
    when its job ended as it should on every rank.
    """
    outcomes: dict[str, Outcome] = {}
    answered: set[str] = set()
    failures: list[JobFailure] = []
    left = list(request.cases)
    while left and len(failures) <= MOST_FAILED_JOBS:
        done, failure = _run_once(replace(request, cases=left), handed, run_job)
        outcomes.update((name, found) for name, found in done.items() if failure is None or found.failure)
        answered |= done.keys() - outcomes.keys()
        left = [c for c in left if c.name not in outcomes]
        failures += [failure] if failure is not None else []
        if len(failures) == MOST_FAILED_JOBS:
            left = [c for c in left if c.name in answered]  # one job more, for what has been answered before
    not_run = Outcome([], _not_run(outcomes, failures))
    return outcomes | {c.name: not_run for c in request.cases if c.name not in outcomes}


def _not_run(outcomes: Mapping[str, Outcome], failures: Sequence[JobFailure]) -> JobFailure:
    """Why cases were left: where none was ever begun, how the jobs failed is all there is to tell."""
    if failures and not outcomes:
        return failures[-1]
    return JobFailure("failed", "not run: too many earlier cases did not end")


def _run_once(
    request: RunRequest, handed: Handed, run_job: RunJob
) -> tuple[dict[str, Outcome], JobFailure | None]:
    """One job: what became of each case that ended or was begun, and how the job failed, if it did."""
    with tempfile.TemporaryDirectory(prefix="labkit-check-") as name:
        directory = Path(name)
        write_request(request, {c.name: handed[c.name] for c in request.cases}, directory)
        failure = run_job(directory, request)
        if failure is not None and failure.verdict == "could_not_be_graded":
            raise CouldNotBeGraded(failure.message)
        outcomes = {c.name: o for i, c in enumerate(request.cases) if (o := _ended(directory, request, i))}
        if len(outcomes) == len(request.cases):
            return outcomes, failure
        failure = failure or JobFailure("error", "the ranks ended before the case did, without an error")
        stopped_in = next(i for i, c in enumerate(request.cases) if c.name not in outcomes)
        if was_begun(directory, stopped_in, request.ranks):
            told = _in_its_own_words(directory, request, stopped_in, failure)
            outcomes[request.cases[stopped_in].name] = Outcome([], told)
        return outcomes, failure


def _ended(directory: Path, request: RunRequest, index: int) -> Outcome | None:
    """What became of a case that every rank has reported on."""
    try:
        found = read_answers(directory, request, index)
    except BadAnswer as problem:
        return Outcome([], JobFailure("error", str(problem)))
    return None if found is None else Outcome(found.answers, first_error(found.errors))


def _in_its_own_words(directory: Path, request: RunRequest, index: int, failure: JobFailure) -> JobFailure:
    """The error that a rank reported of the case, where that is how the job failed."""
    if failure.verdict != "error":
        return failure
    try:
        errors = reported_errors(directory, index, request.ranks)
    except BadAnswer as problem:
        return JobFailure("error", str(problem))
    return first_error(_roots(errors)) or failure


def _roots(errors: Mapping[int, StudentError]) -> dict[int, StudentError]:
    """The errors that are not just what a rank saw of another's end."""
    return {rank: e for rank, e in errors.items() if not AFTER_ANOTHERS.search(e.message)}


def first_error(errors: Mapping[int, StudentError]) -> JobFailure | None:
    """Of what ranks raised, the error that stands for all: never one that another rank's end explains."""
    if not errors:
        return None
    errors = _roots(errors) or errors
    rank = min(errors)
    others = "" if len(errors) == 1 else f" (and on {len(errors) - 1} more)"
    if _is_a_stubs(errors[rank]):
        where = errors[rank].where.partition(": ")[0]  # the line itself says nothing more
        return JobFailure("not_attempted", f"{STILL_A_STUB} ({where})")
    return JobFailure("error", f"rank {rank}{others}: {errors[rank]}")


def _is_a_stubs(error: StudentError) -> bool:
    """Whether this is what a stub raises, in a line of the notebook. torch raises errors of the same type, as
    of a module without `forward`, or of an operation that a device does not have.
    """
    return error.type == "NotImplementedError" and error.type in error.where.partition(": ")[2]
