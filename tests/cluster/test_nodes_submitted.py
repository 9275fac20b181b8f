"""Several nodes from outside of any job: the same call submits one, waits its turn, gives the same Job."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_helpers import both_nodes_taken, cancelled_at_last, nothing_is_left, without_answers
from IPython.core.interactiveshell import InteractiveShell
from nodes_functions import forever, forever_together, sum_of_ranks
from slurm_cluster import LocalSlurm
from waiting import soon, wait_for_output

import labkit
from labkit import processes
from labkit.launch.api import pickle_call
from labkit.launch.failure.errors import InfrastructureError, JobCancelled
from labkit.launch.handover.request import PAYLOAD, Wanted
from labkit.launch.handover.reserved import read_reserved
from labkit.launch.job import Job
from labkit.launch.nodes.files import MEETING, new_directory
from labkit.launch.nodes.place import Nodes
from labkit.magics import RanksMagics
from labkit.slurm import commands

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120), pytest.mark.days()]


@pytest.fixture
def outside(slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSlurm]:
    """This process as on a login node."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    slurm.wait_until_idle()
    yield slurm
    nothing_is_left(slurm, tmp_path)


@contextmanager
def background(function: object) -> Iterator[Job]:
    job = labkit.launch(function, nodes=2, ranks=4, wait=False)  # type: ignore[arg-type]
    try:
        yield job
    finally:
        job.cancel()


def test_it_waits_its_turn_and_gives_the_same_job(
    outside: LocalSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.run("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    job = labkit.launch(sum_of_ranks, 10, nodes=2, ranks=4)
    assert [value for value, _ in job.results] == [46.0] * 4
    assert job.nodes == [node for _, node in job.results]
    assert len(job.collectives) == 4
    shown = capsys.readouterr()
    assert "Slurm: waiting, place 1 in the queue (" in shown.err
    assert f"[rank 0 on {job.nodes[0]}] {job.nodes[0]} speaks" in shown.out
    assert repr(job).startswith("Job on 4 ranks of 2 nodes (gloo), ")


def test_scancel_ends_it_everywhere(outside: LocalSlurm) -> None:
    with background(forever) as job:
        wait_for_output(job)
        assert job.state() == "running on n[1-2]"
        outside.run("scancel", outside.run("squeue", "--noheader", "--format=%A"))
        with pytest.raises(JobCancelled, match="the Slurm job was cancelled"):
            job.wait()


def test_cancel_while_it_waits(outside: LocalSlurm) -> None:
    with both_nodes_taken(outside), background(forever) as job:
        assert job.state().startswith("waiting")
        began = time.monotonic()
        job.cancel()
        assert job.error is not None
        assert job.error.verdict == "cancelled"
        assert time.monotonic() - began < 8


def test_cancel_of_a_job_whose_folder_is_gone(outside: LocalSlurm) -> None:
    with background(forever) as job:
        wait_for_output(job)
        shutil.rmtree(job.run.directory)
        job.cancel()
        assert job.error is not None
        assert job.error.verdict == "cancelled"
        assert outside.run("squeue", "--noheader", "--states=RUNNING,PENDING") == ""


def test_more_nodes_than_there_are(outside: LocalSlurm) -> None:
    with pytest.raises(InfrastructureError, match=r"not available.*--nodes=3.*all: 2 nodes with 16 CPUs"):
        labkit.launch(sum_of_ranks, 1, nodes=3, ranks=3)


def test_more_ranks_than_nodes_have_cores(outside: LocalSlurm) -> None:
    """Slurm would take the job and never start it."""
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"--cpus-per-task=32.*all: 2 nodes with 16 CPUs"):
        labkit.launch(sum_of_ranks, 1, nodes=2, ranks=64)
    assert time.monotonic() - began < 10
    assert outside.run("squeue", "--noheader") == ""


def test_the_queue_has_a_deadline(outside: LocalSlurm) -> None:
    told = r"did not start the job within 2 s \(\w+\)"
    with both_nodes_taken(outside) as blocker:
        with pytest.raises(InfrastructureError, match=told):
            labkit.launch(sum_of_ranks, 1, nodes=2, ranks=4, queue=2)
        assert outside.run("squeue", "--noheader", "--format=%A") == blocker, "it waits no more"
        magics = RanksMagics(InteractiveShell())
        with pytest.raises(InfrastructureError, match=told):
            magics.ranks("4 --nodes 2 --queue 2", "rank")
        assert outside.run("squeue", "--noheader", "--format=%A") == blocker, "nor do others in their place"


def test_the_queue_has_its_deadline_also_when_slurm_does_not_answer(
    outside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"within 2 s .* Protocol authentication error\. `squeue"
    with both_nodes_taken(outside) as blocker:
        monkeypatch.setenv("PATH", without_answers(tmp_path / "bin", "scontrol"))
        with pytest.raises(InfrastructureError, match=told):
            labkit.launch(sum_of_ranks, 1, nodes=2, ranks=4, queue=2)
        assert outside.run("squeue", "--noheader", "--format=%A") == blocker, "it waits no more"


def test_a_start_that_slurm_does_not_tell_of_counts(
    outside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's deadline passes while Slurm does not answer, but the job runs."""
    monkeypatch.setattr(commands, "job_state", fails_to_tell)
    job = labkit.launch(sum_of_ranks, 10, nodes=2, ranks=4, queue=1.0)
    assert [value for value, _ in job.results] == [46.0] * 4


def fails_to_tell(job: str) -> commands.JobState:
    raise commands.SlurmError("Protocol authentication error")


def test_the_job_has_this_environment_whatever_sbatch_is_told(
    outside: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    monkeypatch.setenv("SAID_TO_RANKS", "here")
    assert labkit.launch(os.getenv, "SAID_TO_RANKS", nodes=2, ranks=2).results == ["here"] * 2


def test_a_shared_disk_that_is_full(
    outside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the largest file that may be written, which the call with its arguments is beyond."""
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(InfrastructureError, match=r"job-\w+ cannot be used \(File too large\)"):
            labkit.launch(len, b"x" * (2 << 20), nodes=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("job-*"))


def test_a_shared_folder_that_cannot_be_had(
    outside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path / "file" / "shared"))
    with pytest.raises(InfrastructureError, match=r"file/shared cannot be used .*LABKIT_SHARED names it"):
        labkit.launch(sum_of_ranks, 1, nodes=2, ranks=4)


def test_a_reason_that_stays_is_told(outside: LocalSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a partition which the operator has closed: it may be minutes or weeks."""
    monkeypatch.setattr(commands, "_DOUBT", 1.0)
    outside.run("scontrol", "update", "PartitionName=all", "State=DOWN")
    try:
        with background(forever) as job:
            assert "may never start" not in job.state()
            until = time.monotonic() + 20
            while "PartitionDown for 1 s now: it may never start" not in job.state():
                assert time.monotonic() < until, job.state()
                time.sleep(0.1)
    finally:
        outside.run("scontrol", "update", "PartitionName=all", "State=UP")


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ("n2", "ReqNodeNotAvail, UnavailableNodes:n2"),
        ("n[1-2]", "Nodes required for job are DOWN, DRAINED or"),
    ],
)
def test_nodes_that_must_be_there_and_are_not(
    outside: LocalSlurm, monkeypatch: pytest.MonkeyPatch, gone: str, reason: str
) -> None:
    """One that was asked for is named behind the reason. Of all nodes the reason is a sentence."""
    monkeypatch.setattr(commands, "_DOUBT", 1.0)
    outside.run("scontrol", "update", f"NodeName={gone}", "State=DRAIN", "Reason=tried")
    wanted = ["--nodelist=n2"] if gone == "n2" else []
    try:
        job = commands.submit([*wanted, "--output=/dev/null"], "#!/bin/sh\nsleep 60\n")
        with cancelled_at_last(outside, job):
            watch = commands.JobWatch(job)
            until = time.monotonic() + 30
            while not (state := watch.state()).stays:
                assert time.monotonic() < until, state
                time.sleep(0.1)
            assert reason in state.reason
            assert "may never start" in str(state)
    finally:
        outside.run("scontrol", "update", f"NodeName={gone}", "State=RESUME")


def test_a_step_that_goes_before_its_nodes_have_met_takes_them_with_it(
    outside: LocalSlurm, tmp_path: Path
) -> None:
    """A shell stands for Slurm's own process on each node; that of the first is killed."""
    request, _ = Nodes(2).plan(Wanted(ranks=2))
    folder = new_directory(request)
    request.write(folder)
    (folder / PAYLOAD).write_bytes(pickle_call(forever_together, (), {}))
    told = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "PYTHONPATH": str(Path(labkit.__file__).parents[1]),
    }
    command = f"{sys.executable} -m labkit.launch.nodes.node {folder} & echo $!; wait"

    def begin(number: int) -> tuple[subprocess.Popen[str], int]:
        here = {**told, "SLURM_NODEID": str(number), "SLURMD_NODENAME": f"n{number + 1}"}
        step = subprocess.Popen(["sh", "-c", command], env=here, stdout=subprocess.PIPE, text=True)
        assert step.stdout is not None
        return step, int(step.stdout.readline())

    steps = [begin(0)]
    try:
        assert soon(lambda: read_reserved(folder / MEETING) is not None, 40)
        steps[0][0].kill()
        steps[0][0].wait()
        steps.append(begin(1))
        assert soon(lambda: not any(processes.is_alive(node) for _, node in steps), 40)
    finally:
        for step, node in steps:
            processes.send(node, signal.SIGKILL)
            step.communicate()
        shutil.rmtree(folder)


def test_a_node_that_dies_is_named(outside: LocalSlurm) -> None:
    with background(forever_together) as job:
        wait_for_output(job)
        outside.kill_node("n2")
        try:
            with pytest.raises(InfrastructureError, match="node n2 died"):
                job.wait()
        finally:
            outside.start_node("n2")
