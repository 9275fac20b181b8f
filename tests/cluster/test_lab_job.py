"""JupyterLab as a job of a real Slurm: asked for, waited for, reached, found again, ended; and refused."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import nbformat
import pytest
from cluster_helpers import jupyter_server, nothing_is_left
from playwright.sync_api import expect
from slurm_cluster import LocalSlurm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))
from jupyter_page import NotebookPage, browser_page

NODE = "import os; print('on', os.environ['SLURMD_NODENAME'])"
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]


def lab(
    slurm: LocalSlurm, shared: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`labkit lab` with these options, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "labkit.cli", "lab", *options],
        env={**slurm.environment, "LABKIT_SHARED": str(shared), **environment},
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.usefixtures("unused_lab")  # which has a minute to end meanwhile: see test_unused_lab.py
def test_from_the_queue_to_the_tunnel_and_the_end(slurm: LocalSlurm, tmp_path: Path) -> None:
    root = tmp_path / "lessons"
    root.mkdir()
    slurm.run("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    node = ("--gpus", "2", "--cpus", "3", "--mem", "600M")
    up = lab(slurm, tmp_path, "--slurm", "--root", str(root), "--time", "00:05:00", "--idle", "7", *node)
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
    assert "CPUs/Task=3" in told
    assert "MinMemoryNode=600M" in told

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

    again = lab(slurm, tmp_path, "--slurm", "--gpus", "1", "--mem", "1G")
    assert url in again.stdout, "who asks again gets the one there is"
    assert "It stays as it is: --gpus, --mem would be for a new one." in again.stderr
    assert slurm.run("squeue", "--noheader", "--format=%A").split() == [job]

    ended = lab(slurm, tmp_path, "--stop")
    assert (ended.returncode, ended.stdout.strip()) == (0, f"ended: job {job}")
    nothing_is_left(slurm, tmp_path)
    assert not file.exists()
    assert "no JupyterLab runs" in lab(slurm, tmp_path, "--stop").stdout


def test_a_job_that_ends_is_not_shown(slurm: LocalSlurm, tmp_path: Path) -> None:
    asked = ("--slurm", "--root", str(tmp_path), "--time", "00:05:00")
    assert lab(slurm, tmp_path, *asked).returncode == 0
    first = next((tmp_path / "lab").glob("*.json")).stem
    slurm.run("scancel", first)
    second = lab(slurm, tmp_path, *asked)
    assert second.returncode == 0, second.stderr
    assert f"as Slurm job {first}" not in second.stdout
    assert "as Slurm job " in second.stdout
    lab(slurm, tmp_path, "--stop")
    nothing_is_left(slurm, tmp_path)


def test_a_controller_that_does_not_answer_is_told_in_a_sentence(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Nothing listens on the port of this configuration's controller."""
    config = tmp_path / "slurm.conf"
    elsewhere = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=9", slurm.config.read_text())
    config.write_text(elsewhere)
    failed = lab(slurm, tmp_path, "--slurm", SLURM_CONF=str(config))
    assert failed.returncode == 2
    says = "labkit: Slurm's controller does not answer (squeue tried to reach it); try again in a few minutes"
    assert failed.stderr.startswith(says)
    assert len(failed.stderr.splitlines()) == 1


def test_options_about_jobs_without_a_job_are_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(tmp_path / "no"), "--gpus", "2"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "--gpus would be for a job: --slurm is not there" in told.stderr


def test_nine_gpus_of_eight(slurm: LocalSlurm, tmp_path: Path) -> None:
    refused = lab(slurm, tmp_path, "--slurm", "--gpus", "9", "--time", "5")
    assert refused.returncode == 2
    assert "--gpus-per-node=9" in refused.stderr
    assert "2 nodes with 16 CPUs and gpu:8 each" in refused.stderr, "what there is"
    assert "Traceback" not in refused.stderr


def test_more_than_slurm_ever_gives_is_refused(slurm: LocalSlurm, tmp_path: Path) -> None:
    """And the queue has a deadline, after which nothing of it waits on."""
    for asked in (["--nodes", "9"], ["--cpus", "17"]):
        refused = lab(slurm, tmp_path, "--slurm", *asked, "--time", "5")
        assert refused.returncode == 2
        assert "all: 2 nodes with 16 CPUs" in refused.stderr, refused.stderr
    blocker = slurm.run("sbatch", "--parsable", "-N2", "--exclusive", "-o/dev/null", "--wrap=sleep 60")
    late = lab(slurm, tmp_path, "--slurm", "--time", "5", "--queue", "2")
    assert late.returncode == 2
    assert "Slurm did not start the job within 2 s" in late.stderr
    assert slurm.run("squeue", "--noheader", "--format=%A") == blocker
    slurm.run("scancel", blocker)


def test_a_site_knows_its_limits_without_asking(slurm: LocalSlurm, tmp_path: Path) -> None:
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--gpus", "5", "--account", "me")
    assert "5 GPUs a node: a node of CINECA Leonardo (Booster) has 4" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo")
    assert "wants an account: give --account" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--account", "me", "--cpus", "33")
    assert "33 cores a node: a node of CINECA Leonardo (Booster) has 32" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--account", "me", "--mem", "1T")
    assert "1T a node: a node of CINECA Leonardo (Booster) has 482 GiB" in wants.stderr
    wants = lab(slurm, tmp_path, "--slurm", "--site", "leonardo", "--account", "me", "--time", "2-0")
    assert "boost_usr_prod of CINECA Leonardo (Booster) gives at most 24:00:00" in wants.stderr


def test_a_job_that_cannot_start_jupyterlab_says_why(slurm: LocalSlurm, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('name = "broken"\ncommands = ["echo no such module >&2; exit 1"]\n')
    failed = lab(slurm, tmp_path, "--slurm", "--site", str(site), "--time", "5")
    assert failed.returncode == 2
    assert "ended before JupyterLab was up (failed): no such module" in failed.stderr
    assert os.listdir(tmp_path / "lab")


@pytest.mark.hub
@pytest.mark.browser
def test_through_the_jupyterlab_that_asks(slurm: LocalSlurm, tmp_path: Path) -> None:
    """No tunnel: the page, its files and its kernel all come through the JupyterLab one has."""
    pytest.importorskip("jupyter_server_proxy", reason='not installed: pip install -e ".[hub]"')
    root, home = tmp_path / "lessons", tmp_path / "home"
    for folder in (root, home):
        folder.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NODE)]), root / "one.ipynb")
    nodes = "--ServerProxy.host_allowlist=['127.0.0.1']"  # the NodeAddr of each node here
    with jupyter_server(home, nodes) as base, browser_page() as page:
        up = lab(
            slurm, tmp_path, "--slurm", "--root", str(root), "--time", "00:05:00", JUPYTER_SERVER_URL=base
        )
        assert up.returncode == 0, up.stderr
        url, direct = (word for word in up.stdout.split() if word.startswith("http://"))
        assert url.startswith(f"{base}proxy/absolute/127.0.0.1:")
        assert "ssh -N -L" in up.stdout
        assert direct.split("/", 3)[3] == url.split("/", 3)[3], "the tunnel leads to the same pages"
        with urllib.request.urlopen(url, timeout=10) as refused:
            assert "/user/ada/login" in refused.url, "the door of the JupyterLab one has comes first"
        page.goto(f"{base}tree?token=secret")
        with NotebookPage.open(page, url, "one.ipynb") as notebook:
            page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
            page.keyboard.press("Control+Enter")
            expect(notebook.code_cells.locator(".jp-OutputArea").first).to_contain_text(
                "on n", timeout=30_000
            )
            notebook.save(root / "one.ipynb")
    lab(slurm, tmp_path, "--stop")
    nothing_is_left(slurm, tmp_path)
