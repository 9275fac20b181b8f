"""JupyterLab as a job of a real Slurm: asked for, waited for, reached, found again, ended; and refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cluster_helpers import nothing_is_left
from slurm_cluster import LocalSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


def lab(slurm: LocalSlurm, shared: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`labkit lab` with these options, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "labkit.cli", "lab", *options],
        env={**slurm.environment, "LABKIT_SHARED": str(shared)}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip


@pytest.mark.usefixtures("unused_lab")  # which has a minute to end meanwhile: see test_unused_lab.py
def test_from_the_queue_to_the_tunnel_and_the_end(slurm: LocalSlurm, tmp_path: Path) -> None:
    root = tmp_path / "lessons"
    root.mkdir()
    slurm.run("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    asked = ("--slurm", "--root", str(root), "--time", "00:05:00", "--gpus", "2", "--idle", "7")
    up = lab(slurm, tmp_path, *asked)
    assert up.returncode == 0, up.stderr
    assert "waiting, place 1 in the queue (" in up.stderr
    file = next((tmp_path / "lab").glob("*.json"))
    job = file.stem
    assert f"as Slurm job {job}" in up.stdout
    assert "7 minutes" in up.stdout, "when it ends by itself is said"
    url = next(word for word in up.stdout.split() if word.startswith("http://127.0.0.1"))
    port, token = url.split(":")[2].split("/")[0], url.rpartition("=")[2]
    line = next(line.strip() for line in up.stdout.splitlines() if "ssh" in line)
    assert line.startswith(f"ssh -N -L {port}:127.0.0.1:{port} -J ")
    assert line.endswith(("@n1", "@n2"))
    told = slurm.run("scontrol", "-o", "show", "job", "-d", job)
    assert "TimeLimit=00:05:00" in told
    assert "GRES=gpu:2" in told

    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/contents")
    request.add_header("Authorization", f"token {token}")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        assert answer.status == 200

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    readable = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path for path in readable if token in path.read_text(errors="replace")] == []
    assert token not in (file.parent / f"job-{job}.log").read_text()
    for process in slurm.job_processes():
        assert token not in process, "nor on a command line, which everybody on the node can read"

    again = lab(slurm, tmp_path, "--slurm")
    assert url in again.stdout, "who asks again gets the one there is"
    assert slurm.run("squeue", "--noheader", "--format=%A").split() == [job]

    ended = lab(slurm, tmp_path, "--stop")
    assert (ended.returncode, ended.stdout.strip()) == (0, f"ended: job {job}")
    nothing_is_left(slurm, tmp_path)
    assert not file.exists()
    assert "no JupyterLab runs" in lab(slurm, tmp_path, "--stop").stdout


def test_nine_gpus_of_eight(slurm: LocalSlurm, tmp_path: Path) -> None:
    refused = lab(slurm, tmp_path, "--slurm", "--gpus", "9", "--time", "5")
    assert refused.returncode == 2
    assert "--gpus-per-node=9" in refused.stderr
    assert "2 nodes with 16 CPUs and gpu:8 each" in refused.stderr, "what there is"
    assert "Traceback" not in refused.stderr


def test_a_site_knows_its_limits_without_asking(slurm: LocalSlurm, tmp_path: Path) -> None:
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--gpus", "5", "--account", "me")
    assert "5 GPUs a node: a node of CINECA Leonardo (Booster) has 4" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo")
    assert "wants an account: give --account" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--account", "me", "--time", "2-0")
    assert "boost_usr_prod of CINECA Leonardo (Booster) gives at most 24:00:00" in wants.stderr


def test_a_job_that_cannot_start_jupyterlab_says_why(slurm: LocalSlurm, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('name = "broken"\ncommands = ["echo no such module >&2; exit 1"]\n')
    failed = lab(slurm, tmp_path, "--slurm", "--site", str(site), "--time", "5")
    assert failed.returncode == 2
    assert "ended before JupyterLab was up (failed): no such module" in failed.stderr
    assert os.listdir(tmp_path / "lab")
