"""Did all ranks of a group make the same calls? gloo does not always notice when they did not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.record.recorder import Entry

_MUST_AGREE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"}
_MOST_CALLS = 2000  # of each group, from the beginning

Calls = dict[str, list[list[Any]]]


def calls_by_group(entries: Sequence[Entry]) -> Calls:
    """A rank's collective calls for each group's name: [op, dtype, bytes, "file:line"]."""
    found: Calls = {}
    for entry in entries:
        if entry.op not in ("send", "recv"):
            calls = found.setdefault(entry.group, [])
            if len(calls) < _MOST_CALLS:
                calls.append([entry.op, entry.dtype, entry.num_bytes, f"{entry.file}:{entry.line}"])
    return found


def find_disagreement(paths: Sequence[Path]) -> str:
    """The first call that ranks of one group made differently, in words; "" when there is none.

    paths: the ranks' record files, in order of rank. The ranks have finished, so nobody was kept waiting: but
    what the call computed is undefined.
    """
    ranks = [_read(path) for path in paths]
    for name in sorted({name for calls in ranks for name in calls}):
        members = [rank for rank, calls in enumerate(ranks) if name in calls]
        for number, made in enumerate(zip(*(ranks[rank][name] for rank in members), strict=False), start=1):
            for rank, call in zip(members, made, strict=True):
                if _differ(made[0], call):
                    one, other = _called(members[0], made[0]), _called(rank, call)
                    return f"ranks did not agree in their collective call {number}: {one}, {other}"
    return ""


def _differ(one: list[Any], other: list[Any]) -> bool:
    return bool(one[0] != other[0] or (one[0] in _MUST_AGREE and one[1:3] != other[1:3]))


def _called(rank: int, call: list[Any]) -> str:
    tensor = f" of {call[2]} bytes of {call[1]}" if call[1] else ""
    return f"rank {rank} called {call[0]}{tensor} at {call[3]}"


def _read(path: Path) -> Calls:
    try:
        found = json.loads(path.read_text())["calls_by_group"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
