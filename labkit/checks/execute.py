"""Runs a request's cases on one rank of a job, and writes what the rank reports. The rank's side of a
check.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from labkit.checks import registry
from labkit.checks.case import Case, Inputs, StudentError
from labkit.checks.disarm import disarm
from labkit.checks.files import REQUEST, RunRequest, mark_begun, read_request, write_answer
from labkit.checks.forbidden import forbidding
from labkit.checks.hidden import hidden_modules, hiding
from labkit.checks.rank import Rank, StudentLoadError, load_student, student_error
from labkit.checks.seeding import seed_generators
from labkit.record.current import current_recorder
from labkit.record.threads import follow_threads
from labkit.torch_private_distributed import end_groups_but, groups_made, job_store

# After an error, how long to wait for the other ranks to report the same case before giving the job up.
SECONDS_FOR_OTHERS = 1.0


class CaseFailed(Exception):
    """The student's code raised on this rank and the other ranks are still busy: the job cannot go on."""


def run_rank(directory: str, device: str = "") -> None:
    """Run every case of the request in `directory` on this rank, in order, answering each as it ends.

    device: "cuda" has tensors on this rank's GPU also where the ranks communicate over gloo.

    Called on all ranks of a job whose world size is the request's. Raises CaseFailed when a case ended here
    with an error while other ranks are still in it; the cases that were not reached have no answer.
    """
    path = Path(directory)
    request, inputs = read_request(path, dist.get_rank())
    exercise, groups = registry.exercise(request.exercise), groups_made()
    disarm(exercise.forbids)
    follow_threads()
    for index, case in enumerate(request.cases):
        mark_begun(path, index, dist.get_rank())
        error = _run_case(path, index, case, request, inputs[case.name], device)
        if error is not None and not _others_reported(index, request.ranks):
            raise CaseFailed(f"{exercise.id}, case {case.name}: {error}")
        dist.barrier()
        end_groups_but(groups)  # with its last reference a group's threads end, and there is a bound on these


def _run_case(
    path: Path, index: int, case: Case, request: RunRequest, inputs: Inputs, device: str
) -> StudentError | None:
    exercise, recorder = registry.exercise(request.exercise), current_recorder()
    assert recorder is not None, f"{path / REQUEST} needs a job that records"
    group = dist.new_group(list(range(request.ranks)))
    seed_generators(case.seed * 1009 + dist.get_rank())
    rank = Rank(
        case, inputs, ModuleType("nothing"), group, recorder, torch.device(device) if device else None
    )
    submission = request.own_parts if case.own_parts else request.submission
    error = None
    try:
        with forbidding(exercise.forbids), hiding(hidden_modules(exercise.lesson)):
            rank.left_out = submission.left_out
            rank.student = load_student(submission)
            exercise.run_of(case).on_rank(rank)
    except StudentLoadError as failed:
        error = failed.error
    except Exception as failed:
        error = student_error(failed, submission.left_out)
    write_answer(path, index, dist.get_rank(), rank.result, error)
    job_store().set(_reported(index, dist.get_rank()), "")
    return error


def _others_reported(case_index: int, ranks: int) -> bool:
    """Whether all ranks report the case within a moment. Asked over the network: where work is graded, a
    rank cannot see the others' files.
    """
    deadline = time.monotonic() + SECONDS_FOR_OTHERS
    while time.monotonic() < deadline:
        if job_store().check([_reported(case_index, rank) for rank in range(ranks)]):
            return True
        time.sleep(0.005)
    return False


def _reported(case_index: int, rank: int) -> str:
    return f"labkit: case {case_index}, rank {rank}"
