"""What this rank communicated inside a stretch of a check, from Python and from C++ alike."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec

from labkit.checks.case import JSON
from labkit.record.native import with_native
from labkit.record.recorder import Recorder
from labkit.torch_private_distributed import flight_recorder_entries


@contextlib.contextmanager
def traffic_of_block(recorder: Recorder) -> Iterator[tuple[list[dict[str, JSON]], float]]:
    """A list that, once the block has ended, holds the calls started in it (see labkit.record.Collective).

    With it, the monotonic second in which the block began: the calls' times count from there.
    """
    found: list[dict[str, JSON]] = []
    start = time.monotonic()
    try:
        yield found, start
    finally:
        end = time.monotonic()
        calls = recorder.collectives(start)
        everything = with_native(recorder.rank, calls, recorder.entries, flight_recorder_entries(), start)
        inside = [call for call in everything if 0 <= call.start <= end - start]
        found.extend(msgspec.to_builtins(inside))
