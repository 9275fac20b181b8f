"""Tells from the ranks' state pages whether what they wait for can still come. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.record.exchange import Misfit, Parts, find_misfit, parts_by_peer
from labkit.record.state import RECENT, State, Wait, group_key, message_key

_SIZE_MAY_DIFFER = {"barrier", "gather", "scatter", "all_to_all"}


@dataclass(frozen=True)
class Mismatch:
    """Two calls that do not fit. kind: "op", "dtype", "size", "detail", of messages "tag" or "group", or
    "part", of an all-to-all: `part` says which.
    """

    kind: str
    first: int
    one: Wait
    second: int
    other: Wait
    part: Misfit | None = None


def is_stuck(states: Sequence[State]) -> bool:
    """Whether no waiting rank can be helped by another. All ranks must be waiting or finished for some time.

    A rank is beyond help when a partner of its call has neither made the call nor will: the partner is
    finished, or waits in another call. A call that every partner has made is in progress, and nothing is
    claimed then, unless they made it differently; nor where not every call could be counted.
    """
    waiting = {
        rank: state.wait for rank, state in enumerate(states) if state.phase == "waiting" and state.wait
    }
    known = all(state.complete for state in states)
    return bool(waiting) and known and all(_beyond_help(rank, wait, states) for rank, wait in waiting.items())


def _beyond_help(rank: int, wait: Wait, states: Sequence[State]) -> bool:
    message = message_key(group_key(wait.group), rank)  # as its peer counts them
    if wait.op == "send":
        return states[wait.peer].receives.get(message, 0) < wait.number or _apart(rank, wait, states)
    if wait.op == "recv":
        if wait.peer < 0:  # from anyone: only certain when everyone who could send is done for
            return all(state.sends.get(message, 0) == 0 for state in states)
        return states[wait.peer].sends.get(message, 0) < wait.number or _apart(rank, wait, states)
    key = group_key(wait.group)
    others = [member for member in wait.members if member != rank and member < len(states)]
    if any(states[member].calls.get(key, 0) < wait.number for member in others):
        return True
    return find_mismatch(rank, wait, states) is not None


def _apart(rank: int, wait: Wait, states: Sequence[State]) -> bool:
    """Whether a message is waited for that has another tag than any that came or will."""
    found = find_mismatch(rank, wait, states)
    return found is not None and found.kind == "tag"


def find_mismatch(rank: int, wait: Wait, states: Sequence[State]) -> Mismatch | None:
    """A call of another rank that should meet this one of `rank`, and does not fit it.

    The other is the rank itself where it sends itself, in an all-to-all, what it does not expect.
    """
    if wait.point_to_point:
        return _misfit_message(rank, wait, states) if 0 <= wait.peer < len(states) else None
    for member in wait.members:
        other = _same_call(wait, states[member]) if member != rank and member < len(states) else None
        if other is not None and (kind := _difference(wait, other)):
            return Mismatch(kind, rank, wait, member, other)
        if other is not None and (part := find_misfit(rank, _parts(wait), member, _parts(other))):
            return Mismatch("part", rank, wait, member, other, part)
    own = find_misfit(rank, _parts(wait), rank, _parts(wait))
    return Mismatch("part", rank, wait, rank, wait, own) if own is not None else None


def _parts(wait: Wait) -> Parts:
    return parts_by_peer(wait.members, wait.sent, wait.received)


def _same_call(wait: Wait, state: State) -> Wait | None:
    """The call of the same number on the same group that another rank has made, if it is remembered."""
    known = [*state.recent, *([state.wait] if state.wait is not None else [])]
    fitting = (one for one in known if one.group == wait.group and one.number == wait.number)
    return next((one for one in fitting if not one.point_to_point), None)


def _difference(one: Wait, other: Wait) -> str:
    if one.op != other.op:
        return "op"
    if one.detail != other.detail:
        return "detail"
    if one.dtype != other.dtype:
        return "dtype"
    if one.num_bytes != other.num_bytes and one.op not in _SIZE_MAY_DIFFER:
        return "size"
    return ""


def _misfit_message(rank: int, wait: Wait, states: Sequence[State]) -> Mismatch | None:
    """What the peer does with a message that it should have received, or sent, as this rank did.

    Messages of one tag arrive in order. Only what is remembered of both ranks can be compared.
    """
    if (elsewhere := _on_another_group(rank, wait, states)) is not None:
        return Mismatch("group", rank, wait, wait.peer, elsewhere)
    state, peer = states[rank], states[wait.peer]
    mine = _messages(state, wait.op, wait.peer, wait.group)
    theirs = _messages(peer, "send" if wait.op == "recv" else "recv", rank, wait.group)
    if len(state.recent) == RECENT or len(peer.recent) == RECENT:
        # What was before is forgotten: only the message that both wait in may be compared.
        mine, theirs = mine[-1:], theirs[-1:] if _waits_in_last(peer, theirs) else []
    tags = [one.tag for one in theirs]
    if tags.count(wait.tag) < [one.tag for one in mine].count(wait.tag):
        stray = next((one for one in reversed(theirs) if one.tag not in {own.tag for own in mine}), None)
        return Mismatch("tag", rank, wait, wait.peer, stray) if stray is not None else None
    same = zip(_tagged(mine, wait.tag), _tagged(theirs, wait.tag), strict=False)
    for one, other in same:
        if one.number == wait.number and (kind := _difference(_as_message(one), _as_message(other))):
            return Mismatch(kind, rank, one, wait.peer, other)
    return None


def _on_another_group(rank: int, wait: Wait, states: Sequence[State]) -> Wait | None:
    """A message of the peer that this rank has not met, where the one it waits for was never begun."""
    peer, receives = states[wait.peer], wait.op == "recv"
    begun = peer.sends if receives else peer.receives
    if begun.get(message_key(group_key(wait.group), rank), 0) >= wait.number:
        return None
    met = states[rank].receives if receives else states[rank].sends
    opposite = "send" if receives else "recv"
    return next(
        (
            one
            for one in peer.recent
            if (one.op, one.peer) == (opposite, rank) and one.group != wait.group
            if met.get(message_key(group_key(one.group), wait.peer), 0) < one.number
        ),
        None,
    )


def _waits_in_last(state: State, messages: Sequence[Wait]) -> bool:
    return state.phase == "waiting" and bool(messages) and messages[-1] == state.wait


def _messages(state: State, op: str, peer: int, group: str) -> list[Wait]:
    return [one for one in state.recent if one.op == op and one.peer == peer and one.group == group]


def _tagged(messages: Sequence[Wait], tag: int) -> list[Wait]:
    return [one for one in messages if one.tag == tag]


def _as_message(wait: Wait) -> Wait:
    """Whether it is sent or received is no difference."""
    return replace(wait, op="message")
