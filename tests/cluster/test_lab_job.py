"""JupyterLab as a job of a real Slurm: asked for, waited for, reached, found again, ended; and refused."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from cluster_helpers import both_nodes_taken, jupyter_server, nothing_is_left, without_answers
from playwright.sync_api import expect
from slurm_cluster import LocalSlurm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))
from jupyter_page import NotebookPage, browser_page

from labkit.jupyter.lab import CannotStart
from labkit.slurm import lab_files, lab_job
from labkit.slurm.options import Asked

NODE = "import os; print('on', os.environ['SLURMD_NODENAME'])"
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120), pytest.mark.days()]


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
    assert json.loads(file.read_bytes())["cluster"] == "test", "by which it is known whose to remove"
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
    slurm.cancel(first)
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
    with both_nodes_taken(slurm) as blocker:
        late = lab(slurm, tmp_path, "--slurm", "--time", "5", "--queue", "2")
        assert late.returncode == 2
        assert "Slurm did not start the job within 2 s" in late.stderr
        assert slurm.run("squeue", "--noheader", "--format=%A") == blocker


def test_the_queue_has_its_deadline_also_when_slurm_does_not_answer(
    slurm: LocalSlurm, tmp_path: Path
) -> None:
    """What it says is told. A job that was started meanwhile is not given up."""
    path, asked = (
        without_answers(tmp_path / "bin", "scontrol"),
        ("--slurm", "--root", str(tmp_path), "--time", "5"),
    )
    with both_nodes_taken(slurm) as blocker:
        began = time.monotonic()
        late = lab(slurm, tmp_path, *asked, "--queue", "3", PATH=path)
        assert time.monotonic() - began < 20
        assert late.returncode == 2
        assert slurm.run("squeue", "--noheader", "--format=%A") == blocker, "it waits no more"
    silent = "does not say how it stands now: slurm_load_jobs error: Protocol authentication error"
    assert f"waiting (no reason given yet); Slurm {silent} (" in late.stderr
    assert f"did not start the job within 3 s (no reason given), and {silent}. `squeue --me`" in late.stderr
    slurm.wait_until_idle()
    up = lab(slurm, tmp_path, *asked, "--queue", "4", PATH=path)
    assert up.returncode == 0, up.stderr
    assert "http://127.0.0.1" in up.stdout
    lab(slurm, tmp_path, "--stop")
    nothing_is_left(slurm, tmp_path)


def test_where_the_queue_is_private_no_place_in_it_is_told(slurm: LocalSlurm, tmp_path: Path) -> None:
    """squeue then shows one's own jobs alone, and everybody would be the first."""
    config = slurm.config.read_text()
    slurm.config.write_text(config + "PrivateData=jobs\n")
    slurm.run("scontrol", "reconfigure")
    try:
        with both_nodes_taken(slurm):
            late = lab(slurm, tmp_path, "--slurm", "--time", "5", "--queue", "2")
        assert re.search(r"job \d+: waiting \(", late.stderr), late.stderr
        assert "in the queue" not in late.stderr
    finally:
        slurm.config.write_text(config)
        slurm.run("scontrol", "reconfigure")


@pytest.mark.parametrize("stops", ["Ctrl-C", "folder"])
def test_a_job_that_nobody_waits_for_any_more_goes(slurm: LocalSlurm, tmp_path: Path, stops: str) -> None:
    """Because of Ctrl-C, or because the folder where it would say how to reach it cannot be used any more."""
    command = [sys.executable, "-m", "labkit.cli", "lab", "--slurm", "--root", str(tmp_path), "--time", "5"]
    environment = {**slurm.environment, "LABKIT_SHARED": str(tmp_path)}
    with (
        both_nodes_taken(slurm) as blocker,
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as waiting,
    ):
        assert waiting.stderr is not None
        job = re.match(r"job (\d+): waiting", waiting.stderr.readline())
        assert job is not None
        if stops == "Ctrl-C":
            waiting.send_signal(signal.SIGINT)
        else:
            (tmp_path / "lab").rename(tmp_path / "moved")
            (tmp_path / "lab").touch()
        told = waiting.communicate(timeout=60)[1]
        assert slurm.run("squeue", "--noheader", "--format=%A") == blocker
    assert f"job {job[1]} is cancelled" in told
    assert ("/lab cannot be used (File exists)" in told) == (stops == "folder")
    assert waiting.returncode == (130 if stops == "Ctrl-C" else 2)


def test_a_job_that_was_started_with_another_folder_is_told(slurm: LocalSlurm, tmp_path: Path) -> None:
    """It says nowhere that this command looks how to reach it, and it stays when nobody waits any more."""
    job = slurm.run(
        "sbatch", "--parsable", f"--job-name={lab_job.NAME}", "--output=/dev/null", "--wrap=sleep 60"
    )
    command = [sys.executable, "-m", "labkit.cli", "lab", "--slurm", "--root", str(tmp_path)]
    environment = {**slurm.environment, "LABKIT_SHARED": str(tmp_path)}
    try:
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            told = ""
            while "another LABKIT_SHARED" not in told:
                line = waiting.stderr.readline()
                assert line, told
                told += line
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(30) == 130
        assert f"no log of it is in {tmp_path / 'lab'}" in told
        assert slurm.run("squeue", "--noheader", "--format=%A") == job
    finally:
        slurm.cancel(job)


def test_a_stale_network_disk_ends_the_job_and_is_told(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none here to go stale: reading fails as it would."""

    def fails(job: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(tmp_path))

    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())  # which `labkit lab` adds to, for its job
    monkeypatch.setattr(lab_files, "read", fails)
    with pytest.raises(CannotStart, match=f"Stale file handle: '{tmp_path}'"):
        lab_job.start(tmp_path, Asked(time="5"))
    slurm.wait_until_idle()
    assert slurm.run("squeue", "--noheader") == ""
    nothing_is_left(slurm, tmp_path)


def test_only_what_has_ended_is_said_to_have(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two jobs the one that waits goes at once; the other ignores Slurm, which insists in a minute."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    monkeypatch.setattr(lab_job, "_ENDING", 0.0)
    config, deaf = slurm.config.read_text(), tmp_path / "deaf"
    slurm.config.write_text(config.replace("KillWait=2", "KillWait=60"))
    slurm.run("scontrol", "reconfigure")
    submit = ("sbatch", "--parsable", f"--job-name={lab_job.NAME}", "--output=/dev/null")
    ignores = f"trap '' TERM; echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {deaf}"
    stays = slurm.run(*submit, f"--wrap={ignores}; while :; do sleep 1; done")
    try:
        until = time.monotonic() + 30
        while not deaf.exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        goes = slurm.run(*submit, "--hold", "--wrap=true")
        assert lab_job.stop() == 1
        told = capsys.readouterr()
        assert told.out == f"ended: job {goes}\n"
        assert told.err == f"still ending: job {stays}\n"
    finally:
        with suppress(FileNotFoundError):  # it has not started
            os.kill(int(deaf.read_text()), signal.SIGKILL)
        slurm.cancel(stays)
        slurm.config.write_text(config)
        slurm.run("scontrol", "reconfigure")
    nothing_is_left(slurm, tmp_path)


def test_the_job_has_what_it_was_told_whatever_the_environment_says(
    slurm: LocalSlurm, tmp_path: Path
) -> None:
    """SBATCH_EXPORT=NONE is meant for others; and what a site has run may read names that nobody has set."""
    site = tmp_path / "site.toml"
    site.write_text('name = "strict"\ncommands = ["test -z \\"$NOBODY_HAS_SET_THIS\\""]\n')
    asked = ("--slurm", "--root", str(tmp_path), "--site", str(site), "--time", "5", "--idle", "7")
    up = lab(slurm, tmp_path, *asked, SBATCH_EXPORT="NONE")
    assert up.returncode == 0, up.stderr
    assert "7 minutes" in up.stdout
    lab(slurm, tmp_path, "--stop")
    nothing_is_left(slurm, tmp_path)


def test_a_job_that_is_asked_for_in_another_one_is_not_told_of_that(
    slurm: LocalSlurm, tmp_path: Path
) -> None:
    """As in a terminal of a hub's JupyterLab with GPUs: steps of the new job would want them, too."""
    site = tmp_path / "site.toml"
    site.write_text('name = "steps"\ncommands = ["srun --overlap true"]\n')
    around = {"JOB_ID": "90000", "JOB_NODELIST": "n2", "GPUS_PER_NODE": "2", "MEM_PER_NODE": "99999999"}
    asked = ("--slurm", "--root", str(tmp_path), "--site", str(site), "--gpus", "0", "--time", "5")
    up = lab(slurm, tmp_path, *asked, **{f"SLURM_{name}": value for name, value in around.items()})
    assert up.returncode == 0, up.stderr
    lab(slurm, tmp_path, "--stop")
    nothing_is_left(slurm, tmp_path)


def test_what_jobs_have_left_goes_with_the_next(
    slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a lost node leaves it: how to reach a JupyterLab, with its token, and a log."""
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    waiting = slurm.run("sbatch", "--parsable", "--hold", "-o/dev/null", "--wrap=true")
    for job, cluster in {"90001": "test", "90002": "elsewhere", waiting: "test"}.items():
        lab_files.write(lab_files.Connection(job, "n1", 1, "url", "ssh", 0, cluster=cluster))
    for job in ("90001", "90003", waiting):
        lab_files.log_path(job).touch()
        os.utime(lab_files.log_path(job), (0, 0))
    lab_files.log_path("90004").touch()
    with monkeypatch.context() as silent:
        silent.setenv("PATH", without_answers(tmp_path / "bin", "squeue"))
        lab_job._tidy()
    assert len(os.listdir(tmp_path / "lab")) == 7, "nothing is known where Slurm does not answer"
    refused = lab(slurm, tmp_path, "--slurm", "--root", str(tmp_path), "--gpus", "9")
    assert "--gpus-per-node=9" in refused.stderr
    left = {"90002.json", "job-90004.log", f"{waiting}.json", f"job-{waiting}.log"}
    assert set(os.listdir(tmp_path / "lab")) == left
    slurm.cancel(waiting)


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
