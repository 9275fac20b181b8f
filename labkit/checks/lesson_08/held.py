"""What a rank holds once its backend has let go of what it sent."""

from __future__ import annotations

import time

from labkit.record.live import bytes_of_process, settled_bytes_of_process

PATIENCE = 3.0  # seconds that a backend's own thread may take, on a busy machine, to let go of a tensor


def bytes_held(enough: int) -> int:
    """Bytes of all tensors of this process: as they are if at most `enough`, else the least in PATIENCE."""
    over, held = time.monotonic() + PATIENCE, bytes_of_process()
    while held > enough and time.monotonic() < over:
        held = min(held, settled_bytes_of_process())
    return held
