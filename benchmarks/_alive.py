"""The bytes of the tensors that are alive while something runs, counted exactly after each operation."""

from __future__ import annotations

import gc
from collections.abc import Callable

from labkit.record.live import LiveBytes, tensors_of_process


def most_alive(run: Callable[[], object]) -> int:
    """Bytes of all tensors of this process at the moment when they are most."""
    gc.collect()
    live = LiveBytes()
    live.count(tensors_of_process())
    with live:
        run()
    return live.peak
