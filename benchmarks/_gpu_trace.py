"""When a GPU's streams were at work, as torch.profiler saw it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MERGED = 0.02  # milliseconds: a shorter gap between two kernels is not drawn
KINDS = {"kernel": "compute", "gpu_memcpy": "communication", "gpu_memset": "compute"}
HOST_COPIES = ("HtoD", "DtoH")  # a copy that stays on the device is work like other
Stretch = tuple[int, str, float, float]
"""Stream, kind of work, beginning and end in milliseconds."""


def watched(run: Callable[[], object]) -> list[Stretch]:
    """What the GPU did while `run` ran a second time, in the milliseconds since its first work began.

    The stream that most kernels ran on is stream 0; those of copies have their own numbers.
    """
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return _merged(list(_stretches(events)))


def _stretches(events: list[dict[str, Any]]) -> Iterator[Stretch]:
    """Each kernel and copy; times of a trace are in microseconds."""
    works = [e for e in events if e.get("ph") == "X" and e.get("cat") in KINDS]
    streams = [e["args"]["stream"] for e in works if e["cat"] == "kernel"]
    first = min(e["ts"] for e in works)
    main = max(set(streams), key=streams.count)
    for event in works:
        start = (event["ts"] - first) / 1e3
        stays = not any(way in event["name"] for way in HOST_COPIES)
        kind = "compute" if stays else KINDS[event["cat"]]
        stream = 0 if event["args"]["stream"] == main else event["args"]["stream"]
        yield stream, kind, start, start + event["dur"] / 1e3


def _merged(stretches: list[Stretch]) -> list[Stretch]:
    """Neighbours of one kind on one stream as one, where the gap between them cannot be seen."""
    merged: list[Stretch] = []
    last: dict[int, int] = {}  # stream -> where its last stretch is
    for stream, kind, start, end in sorted(stretches, key=lambda s: s[2]):
        place = last.get(stream)
        if place is not None and merged[place][1] == kind and start - merged[place][3] < MERGED:
            merged[place] = (stream, kind, merged[place][2], max(merged[place][3], end))
            continue
        last[stream] = len(merged)
        merged.append((stream, kind, start, end))
    return [(stream, kind, round(start, 4), round(end, 4)) for stream, kind, start, end in merged]
