"""What the launcher's tests share."""

from __future__ import annotations

import time

import labkit
from labkit import processes
from labkit.launch import client


def leftovers() -> list[str]:
    """Processes and files that jobs of this process's engine have left."""
    engine = client.running_engine()
    if engine is None:
        return []
    pids = [pid for pid in processes.marked(str(engine.directory)) if processes.is_alive(pid)]
    files = {path.name for path in engine.directory.iterdir()} - {"owner.json", "engine.log"}
    return [f"process {pid}" for pid in pids if pid != engine.pid] + sorted(files)


def wait_for_output(job: labkit.Job, text: str = "ready") -> None:
    """Until every rank of a background job has printed the text."""
    until = time.monotonic() + 20
    while not all(text in output for output in job.output):
        assert not job.poll(0.01), job.error
        assert time.monotonic() < until
