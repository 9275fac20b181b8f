"""What this process holds, read often and cheaply."""

from __future__ import annotations

import time

import psutil
import torch

_LEAST_PAUSE = 0.0005  # seconds between two readings that are kept
_MOST_READINGS = 100_000


class MemoryMeter:
    """Readings of (monotonic seconds, bytes): tensors on the GPU if there is one, else the process; none
    where the kernel shows a process nothing of itself, as where ranks are graded.
    """

    def __init__(self) -> None:
        self.readings: list[tuple[float, int]] = []
        self._process = _this_process()

    def read(self) -> None:
        """Note what is held now, unless that was done a moment ago."""
        if self._process is None:
            return
        now, readings = time.monotonic(), self.readings
        if (not readings or now - readings[-1][0] >= _LEAST_PAUSE) and len(readings) < _MOST_READINGS:
            readings.append((now, _held(self._process)))

    def restart(self) -> None:
        """Forget all readings."""
        self.readings = []


def _this_process() -> psutil.Process | None:
    try:
        return psutil.Process()
    except psutil.Error:
        return None


def _held(process: psutil.Process) -> int:
    if torch.cuda.is_initialized():
        return torch.cuda.memory_allocated()
    return int(process.memory_info().rss)
