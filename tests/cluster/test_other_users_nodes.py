"""Nodes that others work on too: what another user reaches of ranks on two of them, tried by one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from nodes_functions import meets_when_told
from slurm_cluster import LocalSlurm
from stranger import Stranger
from waiting import wait_for_output

import labkit

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user too"),
]


def ours(shared: Path) -> list[int]:
    """What runs on the nodes, without Slurm's own processes."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.environ().get("LABKIT_SHARED") == str(shared)
            if mine and process.name() != "srun" and "labkit.launch.nodes.node" in process.cmdline():
                found.append(process.pid)
    return found


@pytest.mark.days
def test_a_job_and_a_session(inside: LocalSlurm, tmp_path: Path) -> None:
    """Five ports, on the address of the node alone: one a rank, gloo's, and that of the nodes' store."""
    go = tmp_path / "go"
    with Stranger() as stranger:
        job = labkit.launch(meets_when_told, str(go), nodes=2, ranks=4, wait=False)
        wait_for_output(job)
        told = stranger.ask(ours(tmp_path), crowd=True)
        assert told["reached"] == ["tcp 127.0.0.1"] * 5
        assert told["processes"] == []
        assert told["files"] == []
        go.touch()
        assert job.wait().results == [4.0] * 4
    with Stranger() as stranger, labkit.session(ranks=4, nodes=2) as session:
        session.run("import torch, torch.distributed as dist; x = torch.ones(1)")
        assert stranger.ask([os.getpid()])["reached"] == [], "the notebook listens no more"
        assert stranger.ask(ours(tmp_path), crowd=True)["reached"] == ["tcp 127.0.0.1"] * 5
        cell = session.run("told = [rank]\ndist.broadcast_object_list(told)\ntold")
        assert set(cell.values.values()) == {"[0]"}
