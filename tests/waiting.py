"""Waiting in tests, always with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from labkit.launch.job import Job


def soon(holds: Callable[[], bool], within: float = 10.0) -> bool:
    """Whether something comes true within so many seconds."""
    until = time.monotonic() + within
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return holds()


def wait_for_output(job: Job, text: str = "ready", seconds: float = 40) -> None:
    """Until every rank of a background job has printed the text."""
    until = time.monotonic() + seconds
    while not all(text in output for output in job.output):
        assert not job.poll(0.05), job.error
        assert time.monotonic() < until, job.output
