"""Adds the communication that C++ started, from torch's flight recorder, to what the Python hooks saw."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit.record.entry import Entry
from labkit.record.events import Collective
from labkit.torch_private import dtype_bytes, dtype_name
from labkit.torch_private_distributed import NATIVE_OPS, members_of_group

_CLOCK_SLACK = 0.0005  # seconds by which the flight recorder's clock may differ from ours

_NEAR = 8  # calls before a moment that may still have been going on in it


def with_native(
    rank: int, recorded: list[Collective], entries: Sequence[Entry], flight: list[dict[str, Any]], zero: float
) -> list[Collective]:
    """All calls of one rank in start order, numbered anew.

    What the flight recorder saw while a Python call was being made is that call, or part of it (gloo makes a
    reduce_scatter from all_reduces). The rest was started by C++: it is added, as "native" and without end.
    """
    offset = _clock_offset()
    calls = [entry for entry in entries if hasattr(entry, "posted")]
    starts = [entry.start for entry in calls]
    taken: set[int] = set()
    native = []
    for item in flight:
        op = NATIVE_OPS.get(item["profiling_name"].rpartition(":")[2])
        created = item["time_created_ns"] / 1e9 - offset
        if op is None or created < zero:  # before the job's function, or an earlier cell
            continue
        last = bisect_right(starts, created + _CLOCK_SLACK)
        near = range(max(0, last - _NEAR), last)
        match = next((n for n in near if n not in taken and _is(calls[n], op, created)), None)
        if match is not None:
            taken.add(match)
        elif not any(_during(calls[n], created, calls[n].posted) for n in near):
            native.append(_native(rank, op, item, created - zero))
    everything = sorted([*recorded, *native], key=lambda call: call.start)
    return [replace(call, order=order) for order, call in enumerate(everything)]


def _clock_offset(tries: int = 20) -> float:
    """Seconds from the monotonic clock to the flight recorder's, which is the time of day.

    Of several readings the one that took least time: between two clocks a busy machine may do something else.
    """
    readings = []
    for _ in range(tries):
        before, today, after = time.monotonic(), time.time(), time.monotonic()
        readings.append((after - before, today - (before + after) / 2))
    return min(readings)[1]


def _is(call: Entry, op: str, created: float) -> bool:
    return call.op == op and _during(call, created, call.posted if call.end is None else call.end)


def _during(call: Entry, created: float, end: float) -> bool:
    return call.start - _CLOCK_SLACK <= created <= end + _CLOCK_SLACK


def _native(rank: int, op: str, item: dict[str, Any], start: float) -> Collective:
    group = members_of_group(item["process_group"][0])
    sizes = [tuple(size) for size in item["input_sizes"]]
    dtypes = [dtype_name(name) for name in item["input_dtypes"]]
    num_bytes = sum(math.prod(size) * dtype_bytes(dtype) for size, dtype in zip(sizes, dtypes, strict=False))
    return Collective(
        rank=rank,
        op=op,
        num_bytes=num_bytes,
        shape=sizes[0] if sizes else (),
        dtype=dtypes[0] if dtypes else "",
        group=group,
        peer=None,
        order=-1,
        start=start,
        end=None,
        source="native",
        line="",
    )
