"""A sandbox that was killed and is still there: told, no fault of a student's, and all else let go."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SEED

import autograder.sandbox.bubblewrap
import autograder.sandbox.sandbox
import labkit.cgroups
from autograder.grade.harness import Harness
from autograder.grade.reference import solved_cells
from autograder.gradebook.problems import PROBLEMS
from autograder.sandbox import apptainer, bubblewrap, unconfined
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import CouldNotEnd, Limits, spawn
from labkit.cgroups import Group
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

TRACER = """
import ctypes, sys, time
print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None), flush=True)  # PTRACE_SEIZE
time.sleep(600)
"""


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """The process does not go while this lasts, killed or not: whoever traces it is to be told first."""
    tracer = subprocess.Popen([sys.executable, "-c", TRACER, str(pid)], stdout=subprocess.PIPE, text=True)
    assert tracer.stdout is not None
    try:
        if tracer.stdout.readline().strip() != "0":
            pytest.skip("no process may be traced here")
        yield
    finally:
        tracer.kill()
        tracer.communicate()


def asleep() -> subprocess.Popen[bytes]:
    """A child to stand for a sandbox."""
    return spawn([sys.executable, "-c", "import time; time.sleep(600)"], (), None)


def test_what_does_not_end_is_told_and_all_else_let_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With each kind: the folders of the two that have some, and what stands for a control group is told to
    end.
    """
    monkeypatch.setattr(autograder.sandbox.sandbox, "END_SECONDS", 0.1)
    monkeypatch.setattr(autograder.sandbox.apptainer, "SECONDS", 0.1)
    monkeypatch.setattr(labkit.cgroups, "SECONDS", 1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    groups = [Group(tmp_path / "group 1"), Group(tmp_path / "group 2")]
    reading, lifeline = os.pipe()
    processes = [asleep(), asleep(), asleep()]
    started = [
        unconfined._Started(processes[0], tempfile.TemporaryDirectory()),
        bubblewrap._Started(processes[1], processes[1].pid, groups[0]),
        apptainer._Started(processes[2], apptainer._Image(), lifeline, Limits(), groups[1]),
    ]
    for group in groups:
        group.path.mkdir()
    for process, one in zip(processes, started, strict=True):
        with held(process.pid), pytest.raises(CouldNotEnd, match=f"process {process.pid} .* is still there"):
            one.end()
        process.communicate(timeout=60)
    os.close(reading)
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(map(str, left)) == ["group 1/cgroup.kill", "group 2/cgroup.kill"]


@pytest.mark.days
def test_a_sandbox_that_does_not_end_is_no_fault_of_the_students(
    f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """The exercise is to be graded again, and the next one is graded at once."""
    with Harness(find_sandbox()) as harness:
        confined = harness._started()
        with pytest.MonkeyPatch.context() as patch, held(confined._process.pid):
            patch.setattr(autograder.sandbox.sandbox, "END_SECONDS", 0.1)
            os.kill(confined.pid, signal.SIGKILL)
            graded = harness.grade(f_exercise, solved_cells("06"), SEED, two_ranks)
        assert graded.report.verdict == "could_not_be_graded", graded.report
        assert f"process {confined._process.pid} of the sandbox" in graded.report.notes[0]
        assert [pipe.closed for pipe in (confined._stdin, confined._pipe("stdout"))] == [True, True]
        again = harness.grade(f_exercise, solved_cells("06"), SEED, two_ranks)
        assert again.report.row("input-gradients").passed, again.report


@pytest.mark.days
def test_a_harness_whose_sandbox_does_not_end_leaves_no_folder() -> None:
    """It is told in a sentence: a person can put it right."""
    harness = Harness(find_sandbox())
    confined = harness._started()
    with pytest.MonkeyPatch.context() as patch, held(confined._process.pid):
        patch.setattr(autograder.sandbox.sandbox, "END_SECONDS", 0.1)
        with pytest.raises(PROBLEMS, match="grade again when it is gone"), harness:
            pass
    assert not Path(harness._folder.name).exists()
    confined._process.wait(60)
