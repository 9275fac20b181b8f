"""`labkit tensorboard`: a scalar written to a folder comes back from the printed address, and no other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cluster_helpers import jupyter_server

from labkit.jupyter.lab import CannotStart, own_port
from labkit.jupyter.tensorboard import PORTS, announcement, run

STEPS = [[0, 4.0], [1, 2.0], [2, 1.0]]
SLURM = {"SLURM_JOB_ID": "5", "SLURM_SUBMIT_HOST": "login1", "USER": "ada"}
SCALAR = "data/plugin/scalars/scalars?tag=loss&run=first"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A run of three steps, as training code writes it."""
    pytest.importorskip("tensorboard", reason='not installed: pip install -e ".[tensorboard]"')
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "runs"
    with SummaryWriter(str(folder / "first")) as writer:
        for step, value in STEPS:
            writer.add_scalar("loss", value, int(step))
    return folder


@contextmanager
def tensorboard(logdir: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on `logdir`, and what it printed."""
    command = [sys.executable, "-m", "labkit.cli", "tensorboard", str(logdir)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "SLURM_"))}
    with subprocess.Popen(
        command, env={**kept, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if "Ctrl-C" in line:
                    break
            yield process, printed
        finally:
            process.kill()


def read(url: str, seconds: float = 20) -> list[list[float]]:
    """Steps and values of the scalar below `url`, as soon as TensorBoard has read the files."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + seconds
    while True:
        try:
            with direct.open(url, timeout=10) as answer:
                return [[step, value] for _, step, value in json.load(answer)]
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.days
def test_scalars_come_back_and_ctrl_c_ends_it(logdir: Path) -> None:
    with tensorboard(logdir) as (process, printed):
        url = re.findall(r"http://\S+", printed)[-1]
        assert read(url + SCALAR) == STEPS
        port = int(url.split(":")[2].split("/")[0])
        assert own_port(PORTS, os.getuid()) <= port < own_port(PORTS, os.getuid()) + 10
        guessed = urllib.request.Request(f"http://127.0.0.1:{port}/data/runs")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(guessed, timeout=10)
        assert url.split("/")[3] not in " ".join(psutil.Process(process.pid).cmdline())
        listening = [c for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
        assert [c.laddr.port for c in listening] == [port], "one door, which has the address as its key"
        assert psutil.Process(process.pid).children(recursive=True) == []
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.days
def test_the_second_one_of_a_person_takes_the_next_port(logdir: Path) -> None:
    with tensorboard(logdir) as (_, first), tensorboard(logdir, SSH_CONNECTION="there") as (_, second):
        ports = [int(re.findall(r"127\.0\.0\.1:(\d+)/", text)[-1]) for text in (first, second)]
        assert ports[1] > ports[0]
        assert re.search(rf"ssh -N -L {ports[1]}:127\.0\.0\.1:{ports[1]} \S+@\S+\n", second)


def test_people_in_a_row_do_not_meet() -> None:
    ports = [own_port(PORTS, uid) + taken for uid in range(1000, 2600) for taken in range(10)]
    assert len(set(ports)) == len(ports)
    assert 1024 < min(ports) <= max(ports) < 32768, "neither privileged nor Linux's ephemeral ports"


def test_a_job_on_a_node_is_reached_through_the_login_node() -> None:
    told = announcement("127.0.0.1", 17230, "key", Path("runs"), SLURM, "n07")
    assert "ssh -N -L 17230:127.0.0.1:17230 -J ada@login1 ada@n07" in told
    assert "http://127.0.0.1:17230/key/" in told


def test_on_a_hub_it_is_found_below_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.jupyter.behind_jupyter.find_spec", lambda name: name)
    mine = {"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}
    told = announcement("127.0.0.1", 17230, "key", Path("runs"), mine, "n07")
    assert "the hub's address, then /user/ada/proxy/17230/key/" in told
    public = {**mine, "JUPYTERHUB_PUBLIC_URL": "https://hub.example.org/user/ada/"}
    told = announcement("127.0.0.1", 17230, "key", Path("runs"), public, "n07")
    assert "    https://hub.example.org/user/ada/proxy/17230/key/\n" in told


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason='not installed: pip install -e ".[tensorboard]"')
    with pytest.raises(CannotStart, match=r"no folder .*none"):
        run(logdir=tmp_path / "none")
    monkeypatch.setattr("labkit.jupyter.tensorboard.find_spec", lambda name: None)
    with pytest.raises(CannotStart, match=r"pip install -e .*tensorboard"):
        run(logdir=tmp_path)


@pytest.mark.days
def test_behind_jupyter_server_proxy(logdir: Path, tmp_path: Path) -> None:
    """A Jupyter server with a base URL, as a hub gives to each user, passes the page on."""
    pytest.importorskip("jupyter_server_proxy", reason='not installed: pip install -e ".[hub]"')
    with jupyter_server(tmp_path) as base, tensorboard(logdir, JUPYTER_SERVER_URL=base) as (_, printed):
        url = re.findall(r"http://\S+", printed)[0]
        assert url.startswith(f"{base}proxy/")
        assert read(url + SCALAR + "&token=secret") == STEPS
        with urllib.request.urlopen(url + "?token=secret", timeout=10) as page:
            assert b"<tb-webapp>" in page.read(), "the page itself"
        with urllib.request.urlopen(url + SCALAR, timeout=10) as refused:
            assert "/user/ada/login" in refused.url, "Jupyter's own door comes first"
