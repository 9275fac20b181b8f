"""A node that others work on too: what another user reaches of running ranks, tried by one."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import rank_functions as on_ranks
import torch.distributed as dist
from stranger import Stranger
from waiting import wait_for_output

import labkit
from labkit.launch import client
from labkit.launch.engine.gpu_lock import GpuLocks
from labkit.launch.engine.signed_store import SignedStore
from labkit.launch.failure.errors import RankError

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user too"),
]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger() as somebody:
        yield somebody


@pytest.fixture
def meeting() -> Iterator[Path]:
    """A folder that everybody can write to, below folders that everybody can enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for path in (folder, f"{folder}/open"):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o777)
        yield Path(folder, "open")


def ours() -> list[int]:
    """The engine, its agents and their ranks."""
    engine = psutil.Process(client.engine().pid)
    return [engine.pid, *(one.pid for one in engine.children(recursive=True))]


def test_a_job(stranger: Stranger, meeting: Path) -> None:
    """One port a rank, gloo's, on the loopback alone, which gives nothing away and takes nothing in."""
    job = labkit.launch(on_ranks.meets_when_told, str(meeting), ranks=3, wait=False)
    wait_for_output(job)
    told = stranger.ask(ours(), crowd=True)
    assert told["reached"] == ["tcp 127.0.0.1"] * 3
    assert told["files"] == []
    assert told["processes"] == []
    (meeting / "go").touch()
    assert job.wait().results == [3.0] * 3


def test_a_session(stranger: Stranger) -> None:
    with labkit.session(ranks=2) as session:
        session.run("import torch, torch.distributed as dist; x = torch.ones(1)")
        assert stranger.ask([os.getpid()])["reached"] == [], "nothing of the notebook's"
        told = stranger.ask(ours(), crowd=True)
        assert told["reached"] == ["tcp 127.0.0.1"] * 2
        assert told["files"] == []
        assert told["processes"] == []
        cell = session.run(
            "told = [rank]\ndist.broadcast_object_list(told)\ndist.all_reduce(x)\ntold, x.item()"
        )
        assert set(cell.values.values()) == {"([0], 2.0)"}


def test_the_place_of_a_rank_is_not_for_others(stranger: Stranger, meeting: Path) -> None:
    """Who connects to a rank where it waits for another one is found out before anything is read.

    Which of two ranks listens is up to the ports that they were given: until the stranger was lucky.
    """
    job = labkit.launch(on_ranks.makes_groups, str(meeting), ranks=2, wait=False)
    until = time.monotonic() + 60
    for turn in range(40):
        while not job.done and len(stranger.ask(ours(), crowd=True)["ports"]) < 2 + 2 * turn + 1:
            assert not job.poll(0.01) or turn
            assert time.monotonic() < until
        (meeting / f"go{turn}").touch()
    with pytest.raises(
        RankError, match=r"ConnectionError: somebody who is not of this job connected in place"
    ):
        job.wait()


def test_the_key_is_in_no_list_of_processes(meeting: Path) -> None:
    job = labkit.launch(on_ranks.meets_when_told, str(meeting), ranks=1, wait=False)
    wait_for_output(job)
    assert len(job.run.request.key) == 32
    assert not [pid for pid in ours() if job.run.request.key in " ".join(psutil.Process(pid).cmdline())]
    (meeting / "go").touch()
    job.wait()


def test_a_gpu_that_is_taken(stranger: Stranger) -> None:
    """Its lock is a name that all may connect to, to hear whose process has it, which `ps` tells too."""
    locks = GpuLocks()
    assert locks.take(["of this test"]) == ""
    try:
        assert stranger.ask([os.getpid()])["reached"] == ["unix @labkit/gpu/of this test"]
    finally:
        locks.give_back(["of this test"])


def test_what_others_write_into_the_store_of_nodes_is_not_believed() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    anybody = dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
    signed = SignedStore(dist.PrefixStore("ranks", server), "the key")  # torch alone does not keep it alive
    store = dist.PrefixStore("group", signed)
    store.set("address", "here")
    assert store.get("address") == b"here"
    assert store.add("count", 2) == 2
    name = "ranks/group/address"
    anybody.set(name, anybody.get(name)[:32] + b"there")
    with pytest.raises(ConnectionError, match="not of this job wrote 'group/address'"):
        store.get("address")
    anybody.set(name, "x")
    with pytest.raises(ConnectionError):
        store.get("address")
