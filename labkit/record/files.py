"""A rank's records as a JSON file: written by the rank, read by whoever looks at the job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.record.agreement import Calls, calls_by_group, messages
from labkit.record.events import Collective, MemoryAt, MemoryUse, Span

if TYPE_CHECKING:
    from labkit.record.recorder import Recorder


@dataclass(frozen=True)
class Record:
    """What the ranks of a job, or of a session's last cell, did: each list in start order, on one clock whose
    0 is when the first rank entered the function. nodes: the node of each rank, where there are several.
    """

    ranks: int
    collectives: list[Collective]
    spans: list[Span]
    memory: list[MemoryUse]
    memory_over_time: list[MemoryAt]
    nodes: Sequence[str] = ()

    @property
    def timeline(self) -> list[Span]:
        """Spans and collectives of all ranks, in start order. A collective nobody waited for is a point."""
        calls = [
            Span(c.rank, c.op, "communication", c.start, c.start if c.end is None else c.end)
            for c in self.collectives
        ]
        return sorted([*self.spans, *calls], key=lambda item: item.start)


@dataclass(frozen=True)
class Records:
    """One rank's file.

    entered: when it began, on the machine's monotonic clock; the other times count from it.
    calls_by_group, messages: see `labkit.record.agreement`. made_groups: how many groups it helped to make.
    """

    rank: int
    entered: float
    calls_by_group: Calls
    messages: Calls
    collectives: list[Collective]
    spans: list[Span]
    memory: list[MemoryUse]
    memory_over_time: list[MemoryAt]
    made_groups: int


def write_records(path: Path, recorder: Recorder, entered: float) -> None:
    """Write communication, spans and memory. `entered`: when the rank began (monotonic): time 0."""
    from labkit.record.native import with_native  # torch, which a reader of records may not have imported
    from labkit.torch_private_distributed import flight_recorder_entries

    calls = recorder.collectives(entered)
    calls = with_native(recorder.rank, calls, recorder.entries, flight_recorder_entries(), entered)
    spans, memory = recorder.timeline(entered), [recorder.memory()]
    collective, sent = (
        calls_by_group([*recorder.entries, *recorder.new_groups]),
        messages(recorder.rank, recorder.entries),
    )
    over_time = recorder.memory_over_time(entered)
    made = len(recorder.new_groups)
    records = Records(recorder.rank, entered, collective, sent, calls, spans, memory, over_time, made)
    path.write_text(json.dumps(msgspec.to_builtins(records)))  # json alone takes file names that are no UTF-8


def read_records(paths: list[Path], clocks: Sequence[float] = (), nodes: Sequence[str] = ()) -> Record:
    """The records of all ranks on one clock.

    A rank that left no (whole) file is left out. clocks: seconds to add to each rank's clock, where ranks ran
    on machines whose clocks differ.
    """
    files = [records for records in map(_read, paths) if records is not None]
    entered = [one.entered + (clocks[one.rank] if clocks and one.entered else 0.0) for one in files]
    zero = min(filter(None, entered), default=0.0)
    later = [(one, began - zero) for one, began in zip(files, entered, strict=True)]
    return Record(
        len(paths),
        _in_order(_ended_later(call, seconds) for one, seconds in later for call in one.collectives),
        _in_order(_ended_later(span, seconds) for one, seconds in later for span in one.spans),
        [use for one in files for use in one.memory],
        _in_order(
            replace(m, start=m.start + seconds) for one, seconds in later for m in one.memory_over_time
        ),
        nodes,
    )


def _in_order(events: Iterable[Any]) -> list[Any]:
    return sorted(events, key=lambda event: event.start)


def _read(path: Path) -> Records | None:
    try:
        return msgspec.convert(json.loads(path.read_text()), Records)
    except (OSError, ValueError):
        return None


def _ended_later(event: Any, seconds: float) -> Any:
    end = None if event.end is None else event.end + seconds
    return replace(event, start=event.start + seconds, end=end)
