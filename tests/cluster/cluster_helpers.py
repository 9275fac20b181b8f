"""What the tests of jobs on several nodes share."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from slurm_cluster import LocalSlurm

from labkit.launch.job import Job


def wait_for_output(job: Job, text: str = "ready", seconds: float = 40) -> None:
    """Until every rank of a background job has printed the text."""
    until = time.monotonic() + seconds
    while not all(text in output for output in job.output):
        assert not job.poll(0.05), job.error
        assert time.monotonic() < until, job.output


def interrupt_soon(seconds: float = 0.7) -> None:
    """Ctrl-C for this process in a moment, when it will be waiting."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def nothing_is_left(slurm: LocalSlurm, shared: Path) -> None:
    """No process of any job, and no directory."""
    assert slurm.wait_until_no_job_processes() == []
    assert list(shared.glob("job-*")) == []
