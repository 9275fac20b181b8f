"""What the tests of jobs on several nodes share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from slurm_cluster import LocalSlurm

from labkit.jupyter.lab import free_port


def interrupt_soon(seconds: float = 0.7) -> None:
    """Ctrl-C for this process in a moment, when it will be waiting."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@contextmanager
def allocation(slurm: LocalSlurm, *options: str) -> Iterator[dict[str, str]]:
    """A job of both nodes, four cores each; what its processes find in their environment."""
    slurm.wait_until_idle()
    command = ["salloc", "--no-shell", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"]
    slurm.run(*command, "--job-name=inside", *options)
    job = slurm.run("squeue", "--noheader", "--name=inside", "--format=%A")
    told = {"JOB_ID": job, "JOB_NODELIST": "n[1-2]", "JOB_CPUS_PER_NODE": "4(x2)", "CONF": str(slurm.config)}
    with cancelled_at_last(slurm, job):
        yield {f"SLURM_{name}": value for name, value in told.items()}


@contextmanager
def cancelled_at_last(slurm: LocalSlurm, job: str) -> Iterator[str]:
    """This job, which holds no node any more afterwards, also when a test fails."""
    try:
        yield job
    finally:
        slurm.cancel(job)


def both_nodes_taken(slurm: LocalSlurm) -> AbstractContextManager[str]:
    """Somebody else's job, which others have to wait for."""
    command = ["sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60"]
    return cancelled_at_last(slurm, slurm.run(*command))


def without_answers(folder: Path, command: str) -> str:
    """A PATH on which a command of Slurm's fails as where a node's clock or key is not the controller's."""
    folder.mkdir()
    script = folder / command
    script.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Protocol authentication error' >&2\nexit 1\n")
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def nothing_is_left(slurm: LocalSlurm, shared: Path) -> None:
    """No process of any job, and no directory."""
    assert slurm.wait_until_no_job_processes() == []
    assert list(shared.glob("job-*")) == []


class UnusedLab:
    """JupyterLab as a job runs it, with a kernel, left alone: 1.2 s without use are too many."""

    def __init__(self, root: Path) -> None:
        self.began = time.monotonic()
        self.folder, self.log = root / "lab", root / "log"
        told = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "LABKIT_SHARED": str(root)}
        command = [sys.executable, "-m", "labkit.slurm.lab_node", "--root", str(root), "--idle", "0.02"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **told}, stdout=log, stderr=log)
        self.had_kernel = self._start_kernel()

    def _start_kernel(self) -> bool:
        until = time.monotonic() + 40
        file = self.folder / "7.json"
        while not file.exists():
            assert time.monotonic() < until, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        found = json.loads(file.read_text())
        token = found["url"].rpartition("=")[2]
        request = urllib.request.Request(f"http://127.0.0.1:{found['port']}/api/kernels", data=b"{}")
        request.add_header("Authorization", f"token {token}")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return bool(json.loads(answer.read())["id"])

    def stop(self) -> None:
        """End it, should it still run."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)


@contextmanager
def jupyter_server(home: Path, *more: str) -> Iterator[str]:
    """The URL, with a path, of a Jupyter server whose token is `secret`."""
    port = free_port("127.0.0.1", 18600)
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.base_url=/user/ada/"]
    command = [sys.executable, "-m", "jupyter_server", *options, *more, "--allow-root", "--no-browser"]
    environment = {**os.environ, "HOME": str(home), "JUPYTER_TOKEN": "secret"}
    with (home / "log").open("w") as log, subprocess.Popen(command, env=environment, stderr=log) as server:
        try:
            base = f"http://127.0.0.1:{port}/user/ada/"
            deadline = time.monotonic() + 30
            while True:
                try:
                    urllib.request.urlopen(base + "api/status?token=secret", timeout=5).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, (home / "log").read_text()
                    time.sleep(0.1)
            yield base
        finally:
            server.terminate()
            server.wait(20)
