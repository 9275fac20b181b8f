"""The script students take home, on a real Slurm: two nodes, a requeue in the middle, the right numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from slurm_cluster import LocalSlurm

import labkit

pytestmark = [pytest.mark.slurm, pytest.mark.days(), pytest.mark.timeout(150)]

SCRIPTS = Path(__file__).parents[2] / "cluster" / "slurm"
STEPS = 60


def by_one_process(steps: int) -> torch.Tensor:
    """Weight and bias after these steps on all of the data at once, in float64, the gradient by hand."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator).double()
    y = x.sum(dim=1, keepdim=True) + 1
    inputs = torch.cat([x, torch.ones(64, 1, dtype=torch.float64)], dim=1)
    weights = torch.zeros(5, 1, dtype=torch.float64)
    for _ in range(steps):
        weights -= 0.1 * 2 / 64 * inputs.T @ (inputs @ weights - y)
    return weights.flatten()


@pytest.mark.days(13)
def test_a_requeued_training_ends_where_one_process_would(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.wait_until_idle()
    workbook, home = tmp_path / "workbook", tmp_path / "home"
    workbook.mkdir()
    monkeypatch.setitem(slurm.environment, "HOME", str(home))
    monkeypatch.setitem(slurm.environment, "PYTHON", sys.executable)
    monkeypatch.setitem(slurm.environment, "RANKS_PER_NODE", "1")
    few = "HOME,PATH,PYTHON,RANKS_PER_NODE,SLURM_CONF"  # and none of what the script itself tells the ranks
    monkeypatch.setitem(slurm.environment, "SBATCH_EXPORT", few)
    script = [str(SCRIPTS / "train.sbatch"), str(SCRIPTS / "train.py")]
    options = ["--steps", str(STEPS), "--pause", "0.05"]
    job = slurm.run("sbatch", "--parsable", f"--chdir={workbook}", *script, *options)
    folder = home / "train" / job
    checkpoint = folder / "train.pt"
    until = time.monotonic() + 60
    while not checkpoint.exists():
        assert time.monotonic() < until, log_of(folder)
        time.sleep(0.05)
    slurm.run("scontrol", "requeue", job)
    slurm.wait_for_state(job, "PENDING")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm would let two minutes pass
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED", seconds=60)
    log = log_of(folder)
    assert state == "COMPLETED", log
    starts = re.findall(r"rank (\d) of 2 on (n\d), from step (\d+)", log)
    assert len(starts) == 4, "two ranks, twice"
    assert {(rank, node) for rank, node, _ in starts} == {("0", "n1"), ("1", "n2")}, "both times"
    assert all(step == "0" for _, _, step in starts[:2])
    assert 0 < int(starts[-1][2]) < STEPS, "the second time it went on from a checkpoint"
    saved = torch.load(checkpoint, weights_only=True)
    found = torch.cat([saved["model"]["weight"].flatten(), saved["model"]["bias"]]).double()
    torch.testing.assert_close(found, by_one_process(STEPS), rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt", "train.pt"]
    assert list(workbook.iterdir()) == [], "nothing is left where the job was submitted"
    assert slurm.wait_until_no_job_processes() == []


def test_what_goes_wrong_before_there_is_a_log_is_told(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setitem(slurm.environment, "TRAIN_FOLDER", str(tmp_path / "file" / "train"))
    job = slurm.run("sbatch", "--parsable", f"--chdir={tmp_path}", str(SCRIPTS / "train.sbatch"))
    slurm.wait_for_state(job, "FAILED", seconds=60)
    assert (tmp_path / f"train-{job}.out").read_text().startswith("mkdir: cannot create directory")


def test_its_profiles_make_one_trace(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.wait_until_idle()
    monkeypatch.setitem(slurm.environment, "HOME", str(tmp_path))
    monkeypatch.setitem(slurm.environment, "PYTHON", sys.executable)
    monkeypatch.setitem(slurm.environment, "RANKS_PER_NODE", "2")
    script = [str(SCRIPTS / "train.sbatch"), str(SCRIPTS / "train.py")]
    profiles = tmp_path / "profiles"
    job = slurm.run("sbatch", "--parsable", *script, "--steps", "6", "--profile", str(profiles))
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED", seconds=90)
    assert state == "COMPLETED", log_of(tmp_path / "train" / job)
    written = labkit.trace(profiles, tmp_path / "trace.json")
    assert written.ranks == 4
    events = json.loads(written.path.read_text())["traceEvents"]
    steps = {(e["pid"], e["name"]) for e in events if e["name"].startswith("ProfilerStep")}
    assert len({pid for pid, _ in steps}) == 4
    assert {name for _, name in steps} == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}


ALONE = """
import importlib.util, sys, torch, torch.distributed as dist
from pathlib import Path
from torch.testing._internal.distributed.fake_pg import FakeStore
spec = importlib.util.spec_from_file_location("train", sys.argv[1])
train = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)
rank, ranks = int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
train.DistributedDataParallel = lambda model: model
torch.serialization.location_tag = lambda storage: "cuda:0"
train.train(int(sys.argv[5]), 1, 0.0, Path(sys.argv[2]), None)
"""


def alone(checkpoint: Path, rank: int, ranks: int, steps: int) -> str:
    """One rank of many, whose messages nobody reads; what it saves is said to be from the first GPU."""
    words = [str(SCRIPTS / "train.py"), str(checkpoint), *map(str, (rank, ranks, steps))]
    done = subprocess.run([sys.executable, "-c", ALONE, *words], capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


@pytest.mark.parametrize("ranks", [12, 100])
def test_every_rank_has_a_share_of_the_data(tmp_path: Path, ranks: int) -> None:
    """12 are three nodes of four GPUs: 64 samples do not divide among them."""
    told = alone(tmp_path / "train.pt", ranks - 1, ranks, 1)
    assert told.startswith(f"rank {ranks - 1} of {ranks} ")
    assert "Error" not in told


def test_a_checkpoint_goes_on_elsewhere_than_on_the_gpu_that_saved_it(tmp_path: Path) -> None:
    assert "step 1: loss" in alone(tmp_path / "train.pt", 0, 1, 1)
    told = alone(tmp_path / "train.pt", 0, 1, 2)
    assert "from step 1\nstep 2: loss" in told, told


def log_of(folder: Path) -> str:
    path = folder / "log.txt"
    return path.read_text() if path.exists() else "no log"
