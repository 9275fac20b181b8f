"""A failure is held against the case it happened in, and own parts are run apart."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

import labkit
from labkit.checks.case import Case, RankAnswer, StudentError
from labkit.checks.files import RunRequest, mark_begun, read_request, write_answer
from labkit.checks.jobs import JobFailure, cases_of_jobs, run_cases
from labkit.checks.judge import patience
from labkit.checks.source.submission import Submission
from labkit.torch_private_distributed import end_groups_but, groups_made

CASES = [Case(name, 2, kind="values") for name in ("first", "second", "third")]
HANDED = {case.name: [{"x": torch.tensor(rank)} for rank in range(2)] for case in CASES}


def request() -> RunRequest:
    return RunRequest("06.made", list(CASES), Submission([]), Submission([]), 2, 5.0)


def answer(directory: Path, index: int, error: StudentError | None = None) -> None:
    """Both ranks begin and report a case; only rank 0 with an error."""
    for rank in range(2):
        mark_begun(directory, index, rank)
        report = RankAnswer(rank, {}, {}, {}, {})
        write_answer(directory, index, rank, report, error if rank == 0 else None)


def test_what_nobody_began_is_run_again_and_not_blamed() -> None:
    """Rank 0 fails in the first case and gives the job up; rank 1's report of that case comes in late."""
    jobs = []

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        jobs.append([case.name for case in asked.cases])
        if len(jobs) == 1:
            answer(directory, 0, StudentError("ValueError", "no", "cell 1"))
            return JobFailure("error", "rank 0 raised CaseFailed")
        for index in range(len(asked.cases)):
            answer(directory, index)
        return None

    outcomes = run_cases(request(), HANDED, run_job)
    assert jobs == [["first", "second", "third"], ["second", "third"]]
    assert outcomes["first"].failure == JobFailure("error", "rank 0: ValueError: no (cell 1)")
    assert [outcomes[name].failure for name in ("second", "third")] == [None, None]


def test_a_case_that_a_rank_began_is_blamed() -> None:
    jobs = []

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        jobs.append([case.name for case in asked.cases])
        if len(jobs) == 1:
            answer(directory, 0)
            mark_begun(directory, 1, 1)
            return JobFailure("deadlock", "rank 1 waits")
        for index in range(len(asked.cases)):
            answer(directory, index)
        return None

    outcomes = run_cases(request(), HANDED, run_job)
    assert jobs == [["first", "second", "third"], ["first", "third"]]
    assert outcomes["second"].failure == JobFailure("deadlock", "rank 1 waits")
    assert [outcomes[name].failure for name in ("first", "third")] == [None, None]


def test_answers_of_a_job_that_did_not_end_as_it_should_do_not_count() -> None:
    """Ranks that leave by `os._exit` after the last answer take the evidence with them."""

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        for index in range(len(asked.cases)):
            answer(directory, index)
        return JobFailure("killed", "rank 1 left")

    outcomes = run_cases(request(), HANDED, run_job)
    assert {o.failure for o in outcomes.values()} == {JobFailure("killed", "rank 1 left")}


def test_what_was_answered_before_too_many_failures_counts() -> None:
    cases = [Case(f"case {n}", 2, kind="values") for n in range(6)]
    many = RunRequest("06.made", cases, Submission([]), Submission([]), 2, 5.0)
    handed = {case.name: [{"x": torch.tensor(0)}] * 2 for case in cases}

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        for index, case in enumerate(asked.cases):
            if case.name > "case 0":
                mark_begun(directory, index, 1)
                return JobFailure("deadlock", "rank 1 waits")
            answer(directory, index)
        return None

    outcomes = run_cases(many, handed, run_job)
    assert outcomes["case 0"].failure is None
    assert all(outcomes[case.name].failure for case in cases[1:])


def test_a_job_that_never_begins_a_case_says_how_it_ended() -> None:
    outcomes = run_cases(request(), HANDED, lambda directory, asked: JobFailure("killed", "out of luck"))
    assert {o.failure for o in outcomes.values()} == {JobFailure("killed", "out of luck")}


def test_own_parts_have_a_job_of_their_own() -> None:
    own = Case("own", 2, kind="own-parts", own_parts=True)
    jobs = cases_of_jobs([CASES[0], own, CASES[1], Case("wide", 4)])
    assert [[case.name for case in job] for job in jobs] == [["first", "second"], ["own"], ["wide"]]


def test_a_rank_reads_what_it_is_handed_and_nothing_else(tmp_path: Path) -> None:
    seen = []

    def run_job(directory: Path, asked: RunRequest) -> JobFailure | None:
        for rank in range(2):
            seen.append({n: t["x"].item() for n, t in read_request(directory, rank)[1].items()})
            held = [path.name for path in directory.glob("*.safetensors") if f"rank{rank}" in path.name]
            assert held == [f"inputs.rank{rank}.safetensors"]
        for index in range(len(asked.cases)):
            answer(directory, index)
        return None

    run_cases(request(), HANDED, run_job)
    assert seen == [{case.name: rank for case in CASES} for rank in range(2)]


def groups_come_and_go(group: dist.ProcessGroup) -> tuple[int, int, int]:
    """Threads of a rank before it makes two groups, while it has them, and after they were ended."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    kept, before = groups_made(), threads()
    made = [dist.new_group([0, 1]) for _ in range(2)]
    for each in made:
        dist.all_reduce(torch.ones(3), group=each)
    between = threads()
    dist.barrier()
    del made, each
    end_groups_but(kept)
    dist.barrier()
    return before, between, threads()


def test_nothing_holds_groups_that_were_ended() -> None:
    """A group has threads for as long as anybody holds it, and a sandbox has a bound on threads."""
    for before, between, after in labkit.launch(groups_come_and_go, ranks=2, backend="gloo").results:
        assert before == after < between


def test_a_job_may_take_longer_on_a_busy_host() -> None:
    assert [patience(load, cores=4) for load in (0.5, 4, 10, 100)] == [1, 1, 2.5, 4]
