"""What this process holds, read often and cheaply."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

_LEAST_PAUSE = 0.0005  # seconds between two readings that are kept
_MOST_READINGS = 100_000
_FORGET_PEAK = "5"  # to Linux (proc(5)): the peak of the resident set begins anew


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


def restart_peak() -> None:
    """Forget what this process has held at most: what it holds now is the most from here on. Where Linux
    shows a process nothing of itself, the peak stays.
    """
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)


def _this_process() -> psutil.Process | None:
    try:
        return psutil.Process()
    except psutil.Error:
        return None


def _held(process: psutil.Process) -> int:
    if torch.cuda.is_initialized():
        return torch.cuda.memory_allocated()
    return int(process.memory_info().rss)
