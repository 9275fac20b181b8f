"""What torch.profiler wrote on every rank (Kineto's files, one a rank) as events on one clock.

On one host all processes share a clock. Clocks of several hosts differ, by milliseconds where they are kept
by NTP and by anything where they are not: there the ends of collectives tell by how much, since all ranks
leave a collective together.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from labkit.record.chrome import Event, in_lanes

_PROCESSES = 1000  # numbers for one rank: itself, and its GPUs
_FLOWS = 2**40  # numbers for the flows of one rank; all stay exact in a viewer's floating-point numbers
_BACKENDS = ("gloo:", "nccl:")
_ONE_SIDED = ("send", "recv", "broadcast", "reduce", "gather", "scatter")  # not everybody leaves together


class BadProfile(ValueError):
    """A folder or a file is not what torch.profiler writes."""


@dataclass(frozen=True)
class Profile:
    """One rank's file. base: nanoseconds of the time of day, from which its times count. events: with times
    in microseconds; of several profiles, from the earliest base (a time of day has no room for nanoseconds).
    """

    rank: int
    host: str
    base: int
    events: list[Event]


def read_profiles(folder: Path, written_to: Path) -> list[Profile]:
    """The profiles in a folder, one a rank, in order of rank. BadProfile when there are none, or two of one
    rank.

    written_to: where all are written together, perhaps into that folder: not a profile.
    """
    files = [
        f for f in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]) if not _same(f, written_to)
    ]
    read = sorted((_read(path) for path in files), key=lambda profile: profile.rank)
    earliest = min((profile.base for profile in read), default=0)
    profiles = [_later(profile, (profile.base - earliest) / 1e3) for profile in read]
    ranks = [profile.rank for profile in profiles]
    if not ranks or len(set(ranks)) < len(ranks):
        raise BadProfile(
            f"{folder}: expected one trace of torch.profiler for each rank (*.json or *.json.gz), found "
            f"those of ranks {ranks}; let every rank export to a name of its own in an empty folder"
        )
    return profiles


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _read(path: Path) -> Profile:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        data = json.loads(raw)
        rank, base = data.get("distributedInfo", {}).get("rank", 0), int(data["baseTimeNanoseconds"])
        events = [e | {"ts": float(e["ts"])} if "ts" in e else e for e in data["traceEvents"]]
        return Profile(rank, data.get("host_name", ""), base, events)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadProfile(
            f"{path}: not a trace of torch.profiler's export_chrome_trace ({type(error).__name__}: {error})"
        ) from None


def _later(profile: Profile, microseconds: float) -> Profile:
    moved = [e | {"ts": e["ts"] + microseconds} if "ts" in e else e for e in profile.events]
    return replace(profile, events=moved)


def events_of_profiles(profiles: Sequence[Profile]) -> list[Event]:
    """All ranks' events on the first rank's clock, in microseconds from the first event."""
    ahead = clocks_ahead(profiles)
    moments = (e["ts"] - ahead[p.rank] for p in profiles for e in p.events if e["ph"] == "X")
    zero = min(moments, default=0.0)
    return [event for p in profiles for event in _apart(list(_of_rank(p, ahead[p.rank] + zero)))]


def clocks_ahead(profiles: Sequence[Profile]) -> dict[int, float]:
    """Microseconds by which each rank's clock is ahead of the first rank's.

    By the median over the collectives that all profiles have: now and then a rank is woken late.
    """
    first = profiles[0]
    by_host = {first.host: 0.0}
    for profile in profiles:
        if profile.host not in by_host:
            apart = [b - a for a, b in _common_ends(first, profile)]
            by_host[profile.host] = median(apart) if apart else 0.0
    return {profile.rank: by_host[profile.host] for profile in profiles}


def _common_ends(one: Profile, other: Profile) -> list[tuple[float, float]]:
    """When both ranks left each of the collectives that both made equally often."""
    ends, others = _ends(one.events), _ends(other.events)
    both = [name for name in ends if len(ends[name]) == len(others.get(name, []))]
    return [pair for name in both for pair in zip(ends[name], others[name], strict=True)]


def _ends(events: Sequence[Event]) -> dict[str, list[float]]:
    """Operation and shape -> the ends of its calls, in the order of time."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        name = event["name"]
        if name.startswith(_BACKENDS) and name.partition(":")[2] not in _ONE_SIDED:
            found[f"{name} {event.get('args', {}).get('Input Dims')}"].append(event["ts"] + event["dur"])
    return found


def _of_rank(profile: Profile, zero: float) -> Iterator[Event]:
    numbers, names = _processes(profile)
    for pid, number in numbers.items():
        about = {"ph": "M", "pid": number, "tid": 0}
        yield about | {"name": "process_name", "args": {"name": names[pid]}}
        yield about | {"name": "process_sort_index", "args": {"sort_index": number}}
    for event in profile.events:
        if event.get("pid") in numbers and event["name"] not in ("process_name", "process_sort_index"):
            yield _moved(event, profile.rank, numbers, zero)


def _processes(profile: Profile) -> tuple[dict[Any, int], dict[Any, str]]:
    """New numbers and names for the rank's own process and its GPUs; the rest are the profiler's notes."""
    labels = {e["pid"]: e["args"]["labels"] for e in profile.events if e["name"] == "process_labels"}
    active = {e["pid"] for e in profile.events if e["ph"] == "X"}
    own = sorted((pid for pid in labels if pid in active), key=lambda pid: labels[pid])  # CPU, GPU 0, ...
    numbers = {pid: profile.rank * _PROCESSES + number for number, pid in enumerate(own)}
    on = f" on {profile.host}" if profile.host else ""
    return numbers, {pid: f"rank {profile.rank}, {labels[pid]}{on}" for pid in own}


def _moved(event: Event, rank: int, numbers: Mapping[Any, int], zero: float) -> Event:
    moved = event | {"pid": numbers[event["pid"]]}
    if "ts" in event and event["ph"] != "M":
        moved["ts"] = round(event["ts"] - zero, 3)
    if "id" in event:
        moved["id"] = rank * _FLOWS + event["id"]
    if event["name"] == "[memory]":
        args = event["args"]
        where = "memory" if args["Device Type"] == 0 else f"memory of GPU {args['Device Id']}"
        return {"ph": "C", "name": where, "pid": moved["pid"], "tid": 0, "ts": moved["ts"],
                "args": {"bytes": args["Total Allocated"]}}  # fmt: skip
    return moved


def _apart(events: list[Event]) -> Iterator[Event]:
    """The same, with slices of one thread that overlap on threads of their own: a viewer would drop them.

    Such are calls that one thread of gloo's has queued.
    """
    threads: dict[tuple[int, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
        else:
            yield event
    for number, ((pid, tid), slices) in enumerate(threads.items(), start=1):
        lanes = in_lanes((e["ts"], e["ts"] + e["dur"]) for e in slices)
        other = {lane: tid if lane == 0 else _FLOWS + number * _PROCESSES + lane for lane in set(lanes)}
        for lane in sorted(other.keys() - {0}):
            about = {"ph": "M", "name": "thread_name", "pid": pid, "tid": other[lane]}
            yield about | {"args": {"name": f"thread {tid}, at the same time ({lane + 1})"}}
        yield from (event | {"tid": other[lane]} for event, lane in zip(slices, lanes, strict=True))
