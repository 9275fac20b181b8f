"""Several nodes from outside of any job: the same call submits one, waits its turn, gives the same Job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import nothing_is_left, wait_for_output
from nodes_functions import forever, forever_together, sum_of_ranks
from slurm_cluster import LocalSlurm

import labkit
from labkit.launch.failure.errors import InfrastructureError, JobCancelled
from labkit.launch.job import Job

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


@pytest.fixture
def outside(slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSlurm]:
    """This process as on a login node."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    slurm.wait_until_idle()
    yield slurm
    nothing_is_left(slurm, tmp_path)


def background(function: object) -> Job:
    return labkit.launch(function, nodes=2, ranks=4, wait=False)  # type: ignore[arg-type]


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
    job = background(forever)
    wait_for_output(job)
    assert job.state() == "running on n[1-2]"
    outside.run("scancel", outside.run("squeue", "--noheader", "--format=%A"))
    with pytest.raises(JobCancelled, match="the Slurm job was cancelled"):
        job.wait()


def test_cancel_while_it_waits(outside: LocalSlurm) -> None:
    blocker = outside.run(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60"
    )
    job = background(forever)
    assert job.state().startswith("waiting")
    began = time.monotonic()
    job.cancel()
    assert job.error is not None
    assert job.error.verdict == "cancelled"
    assert time.monotonic() - began < 8
    outside.run("scancel", blocker)


def test_more_nodes_than_there_are(outside: LocalSlurm) -> None:
    with pytest.raises(InfrastructureError, match=r"PartitionNodeLimit.*all: 2 nodes with 16 CPUs"):
        labkit.launch(sum_of_ranks, 1, nodes=3, ranks=3)


def test_a_node_that_dies_is_named(outside: LocalSlurm) -> None:
    job = background(forever_together)
    wait_for_output(job)
    outside.kill_node("n2")
    try:
        with pytest.raises(InfrastructureError, match="node n2 died"):
            job.wait()
    finally:
        outside.start_node("n2")
