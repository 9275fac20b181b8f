"""A rank's records as a JSON file: written by the rank, read by whoever looks at the job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.record.agreement import Calls, calls_by_group, messages
from labkit.record.events import Collective, MemoryUse, Span

if TYPE_CHECKING:
    from labkit.record.recorder import Recorder


@dataclass(frozen=True)
class Records:
    """One rank's file.

    entered: when it began, on the machine's monotonic clock; the other times count from it.
    calls_by_group, messages: see `labkit.record.agreement`.
    """

    rank: int
    entered: float
    calls_by_group: Calls
    messages: Calls
    collectives: list[Collective]
    spans: list[Span]
    memory: list[MemoryUse]


def write_records(path: Path, recorder: Recorder, entered: float) -> None:
    """Write communication, spans and memory. `entered`: when the rank began (monotonic): time 0."""
    from labkit.record.native import with_native  # torch, which a reader of records may not have imported
    from labkit.torch_private import flight_recorder_entries

    calls = recorder.collectives(entered)
    calls = with_native(recorder.rank, calls, recorder.entries, flight_recorder_entries(), entered)
    spans, memory = recorder.timeline(entered), [recorder.memory()]
    collective, sent = (
        calls_by_group([*recorder.entries, *recorder.new_groups]),
        messages(recorder.rank, recorder.entries),
    )
    records = Records(recorder.rank, entered, collective, sent, calls, spans, memory)
    path.write_text(json.dumps(msgspec.to_builtins(records)))  # json alone takes file names that are no UTF-8


def read_records(
    paths: list[Path], clocks: Sequence[float] = ()
) -> tuple[list[Collective], list[Span], list[MemoryUse]]:
    """The records of all ranks on one clock: 0 is when the first rank entered the function.

    A rank that left no (whole) file is left out. Collectives and spans come in start order. clocks: seconds
    to add to each rank's clock, where ranks ran on machines whose clocks differ.
    """
    files = [records for records in map(_read, paths) if records is not None]
    entered = [one.entered + (clocks[one.rank] if clocks and one.entered else 0.0) for one in files]
    zero = min(filter(None, entered), default=0.0)
    collectives: list[Collective] = []
    spans: list[Span] = []
    for one, began in zip(files, entered, strict=True):
        collectives += [_later(call, began - zero) for call in one.collectives]
        spans += [_later(span, began - zero) for span in one.spans]
    memory = [use for one in files for use in one.memory]
    return sorted(collectives, key=lambda c: c.start), sorted(spans, key=lambda s: s.start), memory


def _read(path: Path) -> Records | None:
    try:
        return msgspec.convert(json.loads(path.read_text()), Records)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def _later(event: Any, seconds: float) -> Any:
    end = None if event.end is None else event.end + seconds
    return replace(event, start=event.start + seconds, end=end)
