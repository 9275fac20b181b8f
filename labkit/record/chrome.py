"""A record as events of the Trace Event Format, which Perfetto, chrome://tracing and speedscope read.

A process is a rank. Its threads are lanes: what overlaps without one being inside the other needs another
lane, since a viewer stacks what one thread does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from labkit.record.events import Collective, MemoryAt, Span
from labkit.record.files import Record
from labkit.record.matching import everybody_came, messages

Event = dict[str, Any]
_REGIONS, _CALLS = 0, 1000  # the first lanes of both kinds
_SHORTEST = 0.01  # microseconds: what took no time at all could not be clicked on, or be a flow's end


def events_of_record(record: Record) -> list[Event]:
    """Everything a record holds, times in microseconds from its 0."""
    lanes = _lanes_of(record.collectives)
    return [
        *_names(record),
        *_regions(record.spans),
        *_calls(record.collectives, lanes),
        *_flows(record.collectives, lanes),
        *_bytes_in_flight(record.collectives),
        *_memory(record.memory_over_time),
    ]


def _names(record: Record) -> Iterator[Event]:
    for rank in range(record.ranks):
        node = f" on {record.nodes[rank]}" if record.nodes and record.nodes[rank] else ""
        yield _metadata(rank, "process_name", name=f"rank {rank}{node}")
        yield _metadata(rank, "process_sort_index", sort_index=rank)


def _metadata(rank: int, what: str, tid: int = 0, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": args}


def _regions(spans: Sequence[Span]) -> Iterator[Event]:
    for rank in sorted({span.rank for span in spans}):
        lanes = in_lanes([(s.start, s.end) for s in spans if s.rank == rank])
        yield from _lane_names(rank, _REGIONS, "regions", lanes)
        for span, lane in zip((s for s in spans if s.rank == rank), lanes, strict=True):
            yield _slice(rank, _REGIONS + lane, span.name, span.kind, span.start, span.end)


def _calls(calls: Sequence[Collective], lanes: Mapping[Collective, int]) -> Iterator[Event]:
    came = everybody_came(calls)
    for rank in sorted({call.rank for call in calls}):
        mine = [call for call in calls if call.rank == rank]
        yield from _lane_names(rank, _CALLS, "communication", [lanes[call] for call in mine])
        for call in mine:
            yield (
                _not_waited_for(call) if call.end is None else _call(call, call.end, lanes[call], came[call])
            )


def _call(call: Collective, end: float, lane: int, everybody: float) -> Event:
    made = _slice(call.rank, _CALLS + lane, call.op, "communication", call.start, end)
    return made | {"args": _arguments(call) | {"waiting for others, ms": (everybody - call.start) * 1e3}}


def _not_waited_for(call: Collective) -> Event:
    what = {"ph": "i", "s": "t", "name": f"{call.op}, not waited for", "cat": "communication"}
    return what | {"pid": call.rank, "tid": _CALLS, "ts": _microseconds(call.start), "args": _arguments(call)}


def _lanes_of(calls: Sequence[Collective]) -> dict[Collective, int]:
    """The lane of each call among its rank's."""
    found: dict[Collective, int] = {}
    for rank in {call.rank for call in calls}:
        mine = [call for call in calls if call.rank == rank]
        lanes = in_lanes((c.start, c.start if c.end is None else c.end) for c in mine)
        found.update(zip(mine, lanes, strict=True))
    return found


def _arguments(call: Collective) -> Event:
    peer = {} if call.peer is None else {"peer": call.peer}
    about = {"bytes": call.num_bytes, "shape": list(call.shape), "dtype": call.dtype}
    parts = {"bytes for each": list(call.sent), "bytes from each": list(call.received)} if call.sent else {}
    return {**about, "group": list(call.group), **peer, **parts, "line": call.line, "made in": call.source}


def _lane_names(rank: int, first: int, name: str, lanes: Sequence[int]) -> Iterator[Event]:
    for lane in sorted(set(lanes)):
        yield _metadata(rank, "thread_name", first + lane, name=f"{name} {lane + 1}" if lane else name)
        yield _metadata(rank, "thread_sort_index", first + lane, sort_index=first + lane)


def _slice(rank: int, tid: int, name: str, kind: str, start: float, end: float) -> Event:
    begin = _microseconds(start)
    length = round(max(_microseconds(end) - begin, _SHORTEST), 3)
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": tid, "ts": begin, "dur": length}


def _microseconds(seconds: float) -> float:
    """To the nanosecond, which is what viewers keep."""
    return round(seconds * 1e6, 3)


def _flows(calls: Sequence[Collective], lanes: Mapping[Collective, int]) -> Iterator[Event]:
    """An arrow from each send to its receive, from inside the one slice to inside the other."""
    for number, (send, receive) in enumerate(messages(calls), start=1):
        if send.end is None or receive.end is None:
            continue
        leaves = _microseconds(send.start)
        arrives = max(leaves, _microseconds(receive.start), _microseconds(receive.end) - _SHORTEST / 2)
        flow = {"name": "message", "cat": "message", "id": number}
        yield {"ph": "s", **flow, "pid": send.rank, "tid": _CALLS + lanes[send], "ts": leaves}
        yield {
            "ph": "f",
            "bp": "e",
            **flow,
            "pid": receive.rank,
            "tid": _CALLS + lanes[receive],
            "ts": arrives,
        }


def _bytes_in_flight(calls: Sequence[Collective]) -> Iterator[Event]:
    for rank in sorted({call.rank for call in calls}):
        mine = [(c, c.end) for c in calls if c.rank == rank and c.end is not None]
        changes = [(c.start, c.num_bytes) for c, _ in mine] + [(end, -c.num_bytes) for c, end in mine]
        changes.sort(key=lambda change: (change[0], -change[1]))  # at one moment, what begins comes first
        totals = accumulate(change for _, change in changes)
        for (moment, _), total in zip(changes, totals, strict=True):
            yield _counter(rank, "bytes in flight", moment, total)


def _memory(readings: Sequence[MemoryAt]) -> Iterator[Event]:
    return (_counter(r.rank, "memory", r.start, r.num_bytes) for r in readings)


def _counter(rank: int, name: str, moment: float, value: int) -> Event:
    return {
        "ph": "C",
        "name": name,
        "pid": rank,
        "tid": 0,
        "ts": _microseconds(moment),
        "args": {"bytes": value},
    }


def in_lanes(stretches: Iterable[tuple[float, float]]) -> list[int]:
    """The lane of each stretch of time: in a lane two of them are apart, or one is inside the other.

    The first lane that has room is taken, longer stretches first among those that begin together.
    """
    numbered = sorted(enumerate(stretches), key=lambda item: (item[1][0], -item[1][1]))
    open_ends: list[list[float]] = []  # of each lane: when what is open there ends, the innermost last
    found = [0] * len(numbered)
    for index, (start, end) in numbered:
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        room = (lane for lane, ends in enumerate(open_ends) if not ends or end <= ends[-1])
        found[index] = next(room, len(open_ends))
        if found[index] == len(open_ends):
            open_ends.append([])
        open_ends[found[index]].append(end)
    return found
