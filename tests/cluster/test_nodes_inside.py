"""Several nodes from inside a Slurm job, on a real Slurm: results, errors, faults, sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from cluster_helpers import allocation, interrupt_soon, without_answers
from IPython.core.interactiveshell import InteractiveShell
from nodes_functions import forever_together, rank_2_leaves, rank_3_fails, sum_of_ranks
from slurm_cluster import LocalSlurm, has_clocks_of_nodes
from waiting import wait_for_output

import labkit
from labkit import hosts
from labkit.launch.failure.errors import (
    DeadlockError,
    InfrastructureError,
    JobCancelled,
    JobTimeout,
    RankError,
)
from labkit.launch.handover.owner import sign
from labkit.launch.handover.request import Request, Wanted, end_path, status_path
from labkit.launch.handover.reserved import RESERVED_BYTES
from labkit.launch.nodes import beats
from labkit.launch.nodes import run as nodes_run
from labkit.launch.nodes.files import ORDERS, Orders, give_order, new_directory, remove_stale
from labkit.launch.nodes.place import Nodes
from labkit.magics import RanksMagics
from labkit.slurm import commands

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120), pytest.mark.days()]


def test_a_function_on_two_nodes_gives_the_same_job(inside: LocalSlurm) -> None:
    job = labkit.launch(sum_of_ranks, 10, nodes=2, ranks=4)
    assert [value for value, _ in job.results] == [46.0] * 4
    assert job.nodes == ["n1", "n1", "n2", "n2"], "in Slurm's order, whichever arrives first"
    assert job.nodes == [node for _, node in job.results], "each rank is said to be where it was"
    assert [text.split()[0] for text in job.output] == job.nodes
    assert [(call.rank, call.op) for call in sorted(job.collectives, key=lambda c: c.rank)] == [
        (rank, "all_reduce") for rank in range(4)
    ]
    assert {(one.rank, one.name) for one in job.timeline if one.kind == "forward"} == {
        (rank, "adding") for rank in range(4)
    }
    ends = [call.end for call in job.collectives]
    starts = [call.start for call in job.collectives]
    assert max(starts) <= min(end for end in ends if end is not None), "one clock: they met in the call"
    assert len(job.memory) == 4


def test_errors_name_rank_and_node(inside: LocalSlurm) -> None:
    with pytest.raises(RankError) as caught:
        labkit.launch(rank_3_fails, nodes=2, ranks=4)
    error = caught.value
    node = error.ranks[3].node
    assert error.rank == 3
    assert node in ("n1", "n2")
    assert f"rank 3 on {node} failed: ValueError: no good" in str(error)
    assert "nodes_functions.py" in str(error)
    assert error.ranks[3].state == "failed"
    assert "failed" not in [one.state for one in error.ranks[:3]], "they wait, or were still to come"
    assert len({one.node for one in error.ranks}) == 2


@pytest.mark.parametrize("function", [rank_3_fails, rank_2_leaves])
def test_evidence_that_could_not_be_written_is_missed_in_a_sentence(
    inside: LocalSlurm, function: Callable[[], None]
) -> None:
    """As on a full disk, whose room nobody had taken before."""
    job = labkit.launch(function, nodes=2, ranks=4, wait=False)
    for rank in range(4):
        status_path(job.run.directory, rank).unlink(missing_ok=True)
        status_path(job.run.directory, rank).mkdir()
    with pytest.raises(InfrastructureError, match=r"(?s)no room to write down how.*LABKIT_SHARED"):
        job.wait()


def test_room_for_the_evidence_is_taken_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    folder = new_directory(Request(ranks=4, backend="gloo", timeout=1, nodes=2))
    for path in (end_path(folder, 3), status_path(folder, 3), folder / "node1.json", folder / ORDERS):
        assert path.stat().st_blocks * 512 >= RESERVED_BYTES


def test_orders_are_read_once_each_and_go_beyond_the_room_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    folder = new_directory(Request(ranks=2, backend="gloo", timeout=1, nodes=2))
    orders = Orders(folder)
    assert orders.new() == []
    for number in (1, 2):
        give_order(folder, do="deadline", seconds=number)
    assert [order["seconds"] for order in orders.new()] == [1, 2]
    give_order(folder, do="stop", reason="x" * RESERVED_BYTES)
    give_order(folder, do="deadline", seconds=3)
    assert [order["do"] for order in orders.new()] == ["stop", "deadline"]
    assert orders.new() == []


def test_a_deadlock_between_nodes_is_found(inside: LocalSlurm) -> None:
    with pytest.raises(DeadlockError, match=r"rank 0 on n\d waits in barrier, but rank 2 has finished"):
        labkit.launch(rank_2_leaves, nodes=2, ranks=4)


def test_a_node_that_dies_is_named(inside: LocalSlurm) -> None:
    job = labkit.launch(forever_together, nodes=2, ranks=4, wait=False)
    wait_for_output(job)
    lost = [rank for rank, node in enumerate(job.nodes) if node == "n2"]
    inside.kill_node("n2")
    try:
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match=f"node n2 died, with ranks {lost[0]} and {lost[1]}"):
            job.wait()
        assert time.monotonic() - began < 15, (
            "the other ranks noticed at once; nobody sat through the timeout"
        )
    finally:
        inside.start_node("n2")


def test_a_node_that_dies_is_named_by_a_session_too(
    inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks' connections end some seconds before anybody knows why."""
    monkeypatch.setattr(beats, "_LOST_AFTER", 3.0)
    with labkit.session(ranks=4, nodes=2) as session:
        session.run("import time")
        threading.Timer(1.0, inside.kill_node, ("n2",)).start()
        try:
            with pytest.raises(InfrastructureError, match="node n2 died, with ranks 2 and 3"):
                session.run("time.sleep(60)")
        finally:
            inside.start_node("n2")


def test_a_node_that_falls_silent_is_named(inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of rank 0, with the store by which the nodes' agents know of each other."""
    monkeypatch.setattr(beats, "_LOST_AFTER", 3.0)
    job = labkit.launch(forever_together, nodes=2, ranks=4, wait=False, timeout=100)
    wait_for_output(job)
    with inside.silent_node(job.nodes[0]):
        began = time.monotonic()
        with pytest.raises(InfrastructureError, match=f"node {job.nodes[0]} died, with ranks 0 and 1: "):
            job.wait()
        assert time.monotonic() - began < 12


def test_an_interrupt_ends_the_job_on_all_nodes(inside: LocalSlurm) -> None:
    job = labkit.launch(forever_together, nodes=2, ranks=4, wait=False)
    wait_for_output(job)
    interrupt_soon()
    with pytest.raises(JobCancelled) as caught:
        job.wait()
    assert caught.value.verdict == "interrupted"
    assert inside.wait_until_no_job_processes(5) == []


def test_an_interrupt_that_cannot_be_written_down_ends_the_job_too(inside: LocalSlurm) -> None:
    """As on a full disk."""
    job = labkit.launch(forever_together, nodes=2, ranks=4, wait=False)
    wait_for_output(job)
    (job.run.directory / ORDERS).unlink()
    (job.run.directory / ORDERS).mkdir()
    job.end("interrupted")
    assert job.error is not None
    assert job.error.verdict == "interrupted"
    assert inside.wait_until_no_job_processes(5) == []


def test_a_session_goes_on_where_no_order_can_be_written(
    inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. The notebook keeps the time then."""
    monkeypatch.setattr(nodes_run, "_PATIENCE", 0.5)
    with labkit.session(ranks=2, nodes=2) as session:
        session.run("import time\nx = rank")
        orders = session._running_job().run.directory / ORDERS
        orders.unlink()
        orders.mkdir()
        assert session.run("x").values == {0: "0", 1: "1"}
        began = time.monotonic()
        with pytest.raises(InfrastructureError):
            session.run("time.sleep(60)", timeout=1)
        assert time.monotonic() - began < 30


def test_more_nodes_than_the_job_has(inside: LocalSlurm) -> None:
    with pytest.raises(ValueError, match=r"has 2 \(n1, n2\); start it with --nodes=3"):
        labkit.launch(sum_of_ranks, 1, nodes=3, ranks=6)
    with pytest.raises(ValueError, match="5 ranks do not divide among 2 nodes"):
        labkit.launch(sum_of_ranks, 1, nodes=2, ranks=5)


def test_a_session_on_two_nodes(inside: LocalSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    magics = RanksMagics(InteractiveShell())
    magics.ranks("4 --nodes 2", "import time, os\nx = rank\nprint('hi')\nos.environ['SLURMD_NODENAME']")
    session = magics.session
    assert session is not None
    with session:
        nodes = session.run("x").nodes
        assert sorted(nodes) == ["n1", "n1", "n2", "n2"]
        shown = capsys.readouterr().out
        for node in ("n1", "n2"):
            first = nodes.index(node)
            assert f"[ranks {first}–{first + 1} on {node}] hi\n" in shown
            assert f"[ranks {first}–{first + 1} on {node}] '{node}'\n" in shown
        magics.ranks("", "x + 1")
        assert magics.session is session, "a line without --nodes means the session that there is"
        assert session.run("x + 1").values == {rank: str(rank + 1) for rank in range(4)}, "variables stay"
        notebook: dict[str, object] = {"weights": (weights := torch.zeros(100_000))}
        session.run("weights += 1", names=notebook)
        notebook["view"] = weights[:2]
        assert session.run("view.tolist()", names=notebook).values[3] == "[1.0, 1.0]", "over TCP, once"
        with pytest.raises(RankError, match=f"rank 2 on {nodes[2]} failed: ZeroDivisionError"):
            session.run("1 / 0 if rank == 2 else 0")
        interrupt_soon()
        with pytest.raises(JobCancelled):
            session.run("time.sleep(60)")
        assert session.run("x").values[3] == "3", "an interrupt keeps the variables"
        with pytest.raises(JobTimeout):
            session.run("time.sleep(60)", timeout=1)


def test_who_failed_is_named_however_long_the_nodes_run(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are interrupted then, and say so at an earlier time of their own clock."""
    if not has_clocks_of_nodes():
        pytest.skip("no time namespaces here")
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    with slurm.node_up_for_longer("n2"), allocation(slurm) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with labkit.session(ranks=2, nodes=2) as session:
            began = session.run("import time\ntime.monotonic()").values
            assert float(began[1]) - float(began[0]) > 80_000
            with pytest.raises(RankError, match="rank 1 on n2 failed: ValueError: no good"):
                session.run("if rank == 1: raise ValueError('no good')\nfor _ in range(99): time.sleep(0.1)")


def test_a_notebook_that_is_killed_leaves_nothing(inside: LocalSlurm, tmp_path: Path) -> None:
    """Its job goes on, but the step that it started ends: srun hears of it, and tells the nodes."""
    program = (
        "import labkit, time, nodes_functions as f\n"
        "job = labkit.launch(f.forever, nodes=2, ranks=2, wait=False)\n"
        "while not all(job.output): job.poll(0.05)\n"
        "print('up', flush=True); time.sleep(300)"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", program], env=here, stdout=subprocess.PIPE) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == b"up\n"
        notebook.kill()
    assert inside.wait_until_no_job_processes(15) == []
    for left in tmp_path.glob("job-*"):
        os.utime(left, (0, 0))  # as if a minute had passed
    remove_stale(tmp_path)  # which the next launch does


def test_what_a_lost_machine_has_left_goes_after_a_week(
    inside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one that waits in the queue may be its job: nothing writes there before it starts."""
    old, new, unsigned, own = (tmp_path / f"job-{name}" for name in ("old", "new", "unsigned", "own"))
    for folder in (old, new, unsigned, own):
        folder.mkdir()
    for folder in (old, new):
        sign(folder)
        _change_owner(folder, where=["another", "boot", "pids"])
    (own / "notes").touch()
    for path in (*tmp_path.glob("job-*/*"), *tmp_path.glob("job-*")):
        os.utime(path, (0, 0))
    (new / "node0.beat").touch()
    os.utime(new, (0, 0))
    waiting = inside.run("sbatch", "--parsable", "--hold", "--job-name=labkit", "-o/dev/null", "--wrap=true")
    remove_stale(tmp_path)
    assert old.exists()
    inside.run("scancel", waiting)
    with monkeypatch.context() as silent:
        silent.setenv("PATH", without_answers(tmp_path / "bin", "squeue"))
        remove_stale(tmp_path)
    assert old.exists(), "nothing is known where Slurm does not answer"
    remove_stale(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)
    assert not unsigned.exists(), "as of a notebook that was killed before it could sign"
    assert (own / "notes").exists(), "a folder of somebody's own that happens to have such a name"
    for folder in (new, own):
        rmtree(folder)


@pytest.mark.parametrize("part", range(3))
def test_what_a_neighbour_has_there_is_let_be(tmp_path: Path, part: int) -> None:
    """Containers of one host name may share the folder: the owner's process id means somebody else there."""
    own, neighbours = tmp_path / "job-own", tmp_path / "job-neighbours"
    for folder in (own, neighbours):
        folder.mkdir()
        sign(folder)
        _change_owner(folder, started=-5)
    where = json.loads((neighbours / "owner.json").read_text())["where"]
    where[part] += "'s neighbour"  # the host, its boot, the namespace of process ids
    _change_owner(neighbours, where=where)
    for folder in (own, neighbours):
        a_while_ago = time.time() - 3600
        os.utime(folder, (a_while_ago, a_while_ago))
    remove_stale(tmp_path)
    assert (own.exists(), neighbours.exists()) == (False, True)


def _change_owner(folder: Path, **changes: object) -> None:
    signature = folder / "owner.json"
    signature.write_text(json.dumps(json.loads(signature.read_text()) | changes))


def test_a_controller_that_does_not_answer_at_the_end_costs_nothing(
    inside: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it is restarted: a job that has finished has its results, one that has failed its error."""
    silent = without_answers(tmp_path / "bin", "scontrol")
    job = labkit.launch(sum_of_ranks, 10, nodes=2, ranks=4, wait=False)
    with monkeypatch.context() as restarting:
        restarting.setenv("PATH", silent)
        says = "Slurm does not say how it stands now: slurm_load_jobs error: Protocol authentication error"
        assert job.state() == f"running on n1,n2; {says}"
        assert [value for value, _ in job.wait().results] == [46.0] * 4
    job = labkit.launch(rank_3_fails, nodes=2, ranks=4, wait=False)
    with monkeypatch.context() as restarting:
        restarting.setenv("PATH", silent)
        with pytest.raises(RankError, match="rank 3 on n2 failed: ValueError: no good"):
            job.wait()


def test_a_job_that_has_finished_does_not_ask_slurm(
    inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller under load takes half a minute to answer."""
    job = labkit.launch(sum_of_ranks, 10, nodes=2, ranks=4, wait=False)
    asked: list[str] = []
    monkeypatch.setattr(commands, "job_state", asked.append)
    assert [value for value, _ in job.wait().results] == [46.0] * 4
    assert asked == []


@pytest.mark.parametrize("asked", ["--gpus-per-node=2", "--gres=gpu:2"])
def test_a_shell_on_the_login_node_counts_the_gpus_of_its_job(
    slurm: LocalSlurm, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Where `salloc` leaves it. Files stand for the nodes' GPUs, so it is only planned."""
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    with allocation(slurm, asked) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        request, _ = Nodes(2).plan(Wanted())
    assert (request.ranks, request.backend, request.devices) == (4, "nccl", [0, 1, 0, 1])


def test_steps_have_this_environment_whatever_the_job_was_told(
    inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job that was submitted with --export=NONE."""
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("SAID_TO_RANKS", "here")
    assert labkit.launch(os.getenv, "SAID_TO_RANKS", nodes=2, ranks=2).results == ["here"] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_CPUS_PER_GPU", "2"), ("SLURM_GPUS_PER_SOCKET", "1")],
)
def test_what_a_job_was_asked_for_with_does_not_forbid_its_steps(
    inside: LocalSlurm, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Some exclude what a step of ours is asked for with."""
    monkeypatch.setenv(name, value)
    assert labkit.launch(os.getpid, nodes=2, ranks=2).ranks == 2
