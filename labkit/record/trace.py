"""One file for all ranks, for a viewer of traces: what labkit recorded, or what torch.profiler wrote."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labkit.record.chrome import Event, events_of_record
from labkit.record.files import Record
from labkit.record.profiles import events_of_profiles, read_profiles
from labkit.whole_file import write_whole


class HasRecord(Protocol):
    """What a trace needs of a job."""

    @property
    def record(self) -> Record: ...


@dataclass(frozen=True)
class TraceFile:
    """A trace that has been written. ranks: how many there are in it."""

    path: Path
    ranks: int
    events: int
    num_bytes: int

    def __repr__(self) -> str:
        return (
            f"{self.path}: {self.ranks} ranks, {self.events:,} events, {self.num_bytes / 1e3:,.0f} kB. "
            "Open it at https://ui.perfetto.dev (nothing is uploaded) or in chrome://tracing"
        )


def trace(source: HasRecord | Record | str | Path, path: str | Path) -> TraceFile:
    """Write one trace of all ranks on one clock to `path` (gzipped where that ends in .gz).

    source: a finished job; what `session.record()` gave; or a folder with the files that torch.profiler's
        `export_chrome_trace` wrote, one a rank. A job's trace has flows from sends to their receives, and
        counters of memory and of bytes in flight; a profile's has the profiler's own events, flows and
        memory. What is at `path` is not read: the same can be written once more.
    Raises BadProfile, a ValueError, for a folder with other files, and OSError where it cannot be written.
    """
    if isinstance(source, str | Path):
        profiles = read_profiles(Path(source), Path(path))
        return _write(events_of_profiles(profiles), len(profiles), Path(path))
    record = source if isinstance(source, Record) else source.record
    return _write(events_of_record(record), record.ranks, Path(path))


def _write(events: Sequence[Event], ranks: int, path: Path) -> TraceFile:
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    packed = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
    try:
        write_whole(path, packed)
    except OSError as error:  # which may name the unfinished file beside it
        raise OSError(error.errno, error.strerror, str(path)) from None
    return TraceFile(path, ranks, len(events), len(packed))
