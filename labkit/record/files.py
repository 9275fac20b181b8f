"""A rank's records as a JSON file: written by the rank, read by whoever looks at the job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.record.events import Collective, MemoryUse, Span, as_json

if TYPE_CHECKING:
    from labkit.record.recorder import Recorder


def write_records(path: Path, recorder: Recorder, entered: float) -> None:
    """Write communication, spans and memory. `entered`: when the rank began (monotonic): time 0."""
    from labkit.record.agreement import calls_by_group
    from labkit.record.native import with_native
    from labkit.record.versions import flight_recorder_entries

    calls = recorder.collectives(entered)
    calls = with_native(recorder.rank, calls, recorder.entries, flight_recorder_entries(), entered)
    data = {
        "rank": recorder.rank,
        "entered": entered,
        "calls_by_group": calls_by_group(recorder.entries),
        "collectives": as_json(list(calls)),
        "spans": as_json(list(recorder.timeline(entered))),
        "memory": as_json([recorder.memory()]),
    }
    path.write_text(json.dumps(data))


def read_records(
    paths: list[Path], clocks: Sequence[float] = ()
) -> tuple[list[Collective], list[Span], list[MemoryUse]]:
    """The records of all ranks on one clock: 0 is when the first rank entered the function.

    A rank that left no (whole) file is left out. Collectives and spans come in start order. clocks: seconds
    to add to each rank's clock, where ranks ran on machines whose clocks differ.
    """
    files = [data for data in map(_read, paths) if data is not None]
    for data in files if clocks else ():
        data["entered"] += clocks[data["rank"]] if data["entered"] else 0.0
    zero = min((data["entered"] for data in files if data["entered"]), default=0.0)
    collectives: list[Collective] = []
    spans: list[Span] = []
    for data in files:
        collectives += [
            _later(Collective.from_json(item), data["entered"] - zero) for item in data["collectives"]
        ]
        spans += [_later(Span.from_json(item), data["entered"] - zero) for item in data["spans"]]
    memory = [MemoryUse.from_json(item) for data in files for item in data["memory"]]
    return sorted(collectives, key=lambda c: c.start), sorted(spans, key=lambda s: s.start), memory


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data


def _later(event: Any, seconds: float) -> Any:
    end = None if event.end is None else event.end + seconds
    return replace(event, start=event.start + seconds, end=end)
