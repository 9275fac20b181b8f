"""The notebook's handle on a job's processes: a step of the job that it is in, or a job that is submitted.

Each is a `Step`: what `run.NodesRun` asks of the processes. A `Job` knows that run alone, as a `place.Run`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from labkit.launch.nodes.files import BEGUN, EXIT, JOB_NAME, SRUN_LOG, read_reports
from labkit.slurm import commands as slurm

_OF_THE_JOB = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPU_BIND",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_MEM_",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_DISTRIBUTION",
)


class Step(Protocol):
    """What a job on several nodes needs of the processes that run it."""

    def ended(self, timeout: float) -> int | None:
        """The exit status, waiting `timeout` seconds at most; None while it runs."""

    def kill(self) -> None:
        """End the processes on all nodes at once."""

    def last_words(self) -> str:
        """What Slurm or the launcher last wrote to its log."""

    def bury(self) -> None:
        """Leave nothing behind that waits for it."""

    def state(self) -> slurm.JobState:
        """How Slurm says the job stands; may be some seconds old."""

    def state_now(self) -> slurm.JobState:
        """How Slurm says the job stands, asked now."""

    def pending(self) -> bool:
        """Whether the job waits for its turn."""


def srun_command(nodes: int, cpus: int, directory: Path, *options: str) -> list[str]:
    """One process of ours on each node. The same inside a job and in a job's script.

    --overlap: the notebook, itself a step or the batch script, holds the job's resources already.
    --kill-on-bad-exit: when one node's process fails, the others are ended. --cpus-per-task, --cpu-bind: the
    ranks use all cores of the job, and share them among themselves. --export: a job that was submitted with
    none of the environment would start its steps without it too.
    """
    return [
        *("srun", "--overlap", "--kill-on-bad-exit=1", f"--nodes={nodes}", f"--ntasks={nodes}"),
        *("--ntasks-per-node=1", f"--cpus-per-task={cpus}", "--cpu-bind=none", "--mem=0"),
        *("--export=ALL", *options),
        *(sys.executable, "-m", "labkit.launch.nodes.node", str(directory)),
    ]


class SrunStep:
    """srun as a child of the notebook, inside its job."""

    def __init__(self, directory: Path, allocation: slurm.Allocation, nodes: int) -> None:
        self._directory, self._nodes = directory, nodes
        runs = slurm.JobState("RUNNING", nodes=",".join(allocation.nodes))
        self._watch = slurm.JobWatch(allocation.job, known=runs)
        command = srun_command(nodes, allocation.cpus, directory, f"--jobid={allocation.job}", "--quiet")
        with open(directory / SRUN_LOG, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--follow-stdin"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(os.environ),
                start_new_session=True,  # the kernel's SIGINT is not for it
            )

    def ended(self, timeout: float) -> int | None:
        """The exit status of srun, waiting `timeout` seconds at most; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.returncode

    def kill(self) -> None:
        """End the step the hard way."""
        self._process.send_signal(signal.SIGTERM)  # srun ends its step on all nodes
        reports = read_reports(self._directory, self._nodes)
        for step in {report.step for report in reports.values()}:
            with contextlib.suppress(slurm.SlurmError):
                slurm.cancel(step)

    def last_words(self) -> str:
        return last_words(self._directory)

    def bury(self) -> None:
        """Wait for srun no more."""
        self._process.kill()
        self._process.wait()

    def state(self) -> slurm.JobState:
        return self._watch.state()

    def state_now(self) -> slurm.JobState:
        return self._watch.state(fresh=True)

    def pending(self) -> bool:
        return False


class BatchStep:
    """A job of its own, submitted with sbatch."""

    def __init__(
        self,
        directory: Path,
        options: Sequence[str],
        nodes: int,
        cpus: int,
        setup: str = "",
        queue: float = 0.0,
    ) -> None:
        """queue: seconds the job may wait for its turn; 0 for as long as it takes."""
        self._directory = directory
        run = shlex.join(srun_command(nodes, cpus, directory))
        begun, ended = (shlex.quote(str(directory / name)) for name in (BEGUN, EXIT))
        script = f"#!/bin/bash\necho 1 > {begun}\n{setup}\n{run}\necho $? > {ended}\n"
        log = directory / SRUN_LOG
        fixed = [f"--output={log}", "--open-mode=append", "--no-requeue", f"--job-name={JOB_NAME}"]
        self.job = slurm.submit(
            [*fixed, f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", *options], script
        )
        self._watch = slurm.JobWatch(self.job, queue)
        self._hopeless: slurm.JobState | None = None

    def ended(self, timeout: float) -> int | None:
        """The exit status of srun; -1 when Slurm ended the job before it could say; None while it runs."""
        until = time.monotonic() + timeout
        while True:
            if told := _text(self._directory / EXIT).strip():
                return int(told)
            state = self.state()
            if state.hopeless and not self._has_begun(state):
                self._hopeless = state
                self.kill()
                return -1
            if state.ended:
                return -1
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def _has_begun(self, state: slurm.JobState) -> bool:
        """Whether it was started although Slurm does not say so."""
        return bool(state.unanswered and _text(self._directory / BEGUN))

    def kill(self) -> None:
        """Have Slurm end the job, if it answers."""
        with contextlib.suppress(slurm.SlurmError):
            slurm.cancel(self.job)

    def last_words(self) -> str:
        return last_words(self._directory)

    def bury(self) -> None:
        self.kill()

    def state(self) -> slurm.JobState:
        return self._watch.state()

    def state_now(self) -> slurm.JobState:
        """As of now, or as it was when there was no hope for the job."""
        return self._hopeless or self._watch.state(fresh=True)

    def pending(self) -> bool:
        return self.state().state in ("PENDING", "CONFIGURING")


def last_words(directory: Path) -> str:
    """What srun and the nodes' agents have written, without srun's prefixes."""
    return _text(directory / SRUN_LOG)[-2000:].strip()


def _text(path: Path) -> str:
    """What stands there; nothing where the disk is gone or stale."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what an enclosing step or batch script has fixed for its own tasks."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_THE_JOB)}
