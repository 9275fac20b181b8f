"""What a rank of a graded job can see and reach, told by the rank itself."""

from __future__ import annotations

import ast

import pytest
from conftest import F_ID, SEED, solution

from autograder.grade.harness import Harness
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(200)]

# In place of the exercise's backward: an error whose text is what the rank has found, in few words.
LOOK = """
import glob, os, socket, ctypes
import torch

def places():
    libc = ctypes.CDLL(None, use_errno=True)
    status = [libc.unshare(0x10000000), libc.umount2(b"/out", 2), libc.ptrace(16, 2, 0, 0)]
    try:
        socket.socket(socket.AF_UNIX)
        status.append("unix")
    except OSError:
        pass
    rank = os.environ["RANK"]
    inputs = [os.path.basename(path) for path in glob.glob("/out/*/*.safetensors")]
    return {"pid": os.getpid(), "parent": os.getppid(),
            "inputs": inputs == [f"inputs.rank{rank}.safetensors"],
            "empty": [os.listdir(p) for p in ("/in", "/tmp", "/dev/shm")],
            "proc": os.listdir("/proc"),
            "refused": [s for s in status if s != -1]}

class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        raise ValueError("FOUND" + repr(places()) + "END")
"""


def test_a_rank_is_alone_with_its_own_inputs(
    harness: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    graded = harness.grade(f_exercise, [Cell("cell 1", LOOK)], SEED, two_ranks[:1])
    texts = [*(row.seen for row in graded.report.rows), *(stop.text for stop in graded.report.stops)]
    told = next(text for text in texts if "FOUND" in text)
    found = ast.literal_eval(told.partition("FOUND")[2].partition("END")[0])
    assert found == {
        "pid": 1, "parent": 0, "inputs": True, "empty": [[], [], []], "proc": ["cpuinfo"], "refused": [],
    }  # fmt: skip


def test_the_bytes_between_two_ranks_are_counted(
    harness: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """Each rank sends the other its part of the all-reduce, which is more than its data."""
    graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks[:1])
    job = graded.jobs[0]
    assert job.wire == sum(map(sum, job.pairs))
    assert job.pairs[0][0] == job.pairs[1][1] == 0
    assert min(job.pairs[0][1], job.pairs[1][0]) > job.least / 2 > 0
    assert job.least < job.wire
    assert job.missing == ()
