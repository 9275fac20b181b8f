"""Tells from the ranks' state pages whether what they wait for can still come. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.record.state import State, Wait, group_key

_SIZE_MAY_DIFFER = {"barrier", "gather", "scatter", "all_to_all"}


@dataclass(frozen=True)
class Mismatch:
    """Two ranks in calls that cannot meet. kind: "op", "dtype", "size" or "count"."""

    kind: str
    first: int
    second: int


def is_stuck(states: Sequence[State]) -> bool:
    """Whether no waiting rank can be helped by another. All ranks must be waiting or finished for some time.

    A rank is beyond help when a partner of its call has neither made the call nor will: the partner is
    finished, or waits in another call. A call that every partner has made is in progress, and nothing is
    claimed then.
    """
    waiting = {
        rank: state.wait for rank, state in enumerate(states) if state.phase == "waiting" and state.wait
    }
    return bool(waiting) and all(_beyond_help(rank, wait, states) for rank, wait in waiting.items())


def _beyond_help(rank: int, wait: Wait, states: Sequence[State]) -> bool:
    if wait.op == "send":
        return wait.peer >= 0 and states[wait.peer].receives.get(rank, 0) < wait.number
    if wait.op == "recv":
        if wait.peer < 0:  # from anyone: only certain when everyone who could send is done for
            return all(state.sends.get(rank, 0) == 0 for state in states)
        return states[wait.peer].sends.get(rank, 0) < wait.number
    key = group_key(wait.group)
    others = [member for member in wait.members if member != rank and member < len(states)]
    if any(states[member].calls.get(key, 0) < wait.number for member in others):
        return True
    return find_mismatch(rank, wait, states) is not None


def find_mismatch(rank: int, wait: Wait, states: Sequence[State]) -> Mismatch | None:
    """Another member of the group whose call of the same number is a different one."""
    for member in wait.members:
        other = states[member].wait if member != rank and member < len(states) else None
        if other is None or other.point_to_point:
            continue
        if other.group == wait.group and other.number == wait.number:
            kind = _difference(wait, other)
            if kind:
                return Mismatch(kind, rank, member)
    return None


def _difference(one: Wait, other: Wait) -> str:
    if one.op != other.op:
        return "op"
    if one.dtype != other.dtype:
        return "dtype"
    if one.num_bytes != other.num_bytes and one.op not in _SIZE_MAY_DIFFER:
        return "size"
    return ""
