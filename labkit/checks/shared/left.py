"""What calls leave behind when they are over."""

from __future__ import annotations

import time

from labkit.checks.shared.holding import Holding, held_since

PATIENCE = 2.0  # seconds for a backend's threads to let go of a collective's tensors on a busy machine


def left_since(before: Holding, expected: int = 0) -> int:
    """Bytes held that were not there when `holding` gave `before`: the least in a while, until there are
    no more than expected.
    """
    over, least = time.monotonic() + PATIENCE, held_since(before)
    while least > expected and time.monotonic() < over:
        time.sleep(PATIENCE / 100)
        least = min(least, held_since(before))
    return least
