"""Did all ranks make calls that fit each other? gloo does not always notice when they did not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.record.exchange import Parts, find_misfit, parts_by_peer
from labkit.record.state import Wait

if TYPE_CHECKING:
    from labkit.record.entry import Entry

_MUST_AGREE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"}
_SAME_DTYPE = {*_MUST_AGREE, "all_to_all"}
_MOST_CALLS = 2000  # of each group, and between each two ranks, from the beginning
_ANYBODY = -1

Calls = dict[str, list[list[Any]]]


def calls_by_group(entries: Sequence[Entry | Wait]) -> Calls:
    """A rank's collective calls for each group's name: [op, dtype, bytes, detail, "file:line", parts].

    parts: of an all_to_all, for each other rank the bytes for it and those expected from it.
    """
    found: Calls = {}
    for entry in entries:
        if entry.op not in ("send", "recv"):
            _add(found, entry.group, entry)
    return found


def messages(rank: int, entries: Sequence[Entry]) -> Calls:
    """A rank's sends and receives, as above, for each "op group from to tag": one arrives after another."""
    found: Calls = {}
    for entry in entries:
        if entry.op in ("send", "recv"):
            ends = (rank, entry.peer) if entry.op == "send" else (entry.peer, rank)
            _add(found, _lane(entry.op, entry.group, *ends, entry.tag), entry)
    return found


def _add(found: Calls, name: str, entry: Entry | Wait) -> None:
    calls = found.setdefault(name, [])
    if len(calls) < _MOST_CALLS:
        line = f"{entry.file}:{entry.line}"
        parts = parts_by_peer(entry.members, entry.sent, entry.received)
        told = {str(peer): both for peer, both in parts.items()}
        calls.append([entry.op, entry.dtype, entry.num_bytes, entry.detail, line, told])


def _lane(op: str, group: str, source: int, target: int, tag: int) -> str:
    return f"{op} {group} {source} {target} {tag}"


class Ledger:
    """What the ranks of a session have called so far: one may send what another receives in a later cell."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.forget()

    def forget(self) -> None:
        """All ranks begin anew."""
        self._calls: list[dict[str, Calls]] = [
            {"calls_by_group": {}, "messages": {}} for _ in range(self._ranks)
        ]
        self._told: set[str] = set()

    def add(self, rank: int, called: Mapping[str, Calls]) -> None:
        """What a rank called in a cell, as `called_by` says it."""
        for kind, calls in called.items():
            for name, made in calls.items():
                known = self._calls[rank][kind].setdefault(name, [])
                known += made[: _MOST_CALLS - len(known)]

    def disagreement(self) -> str:
        """As `find_disagreement`, of what has not been told before."""
        new = next((told for told in _disagreements(self._calls) if told not in self._told), "")
        self._told.add(new)
        return new


def called_by(rank: int, entries: Sequence[Entry], new_groups: Sequence[Wait]) -> dict[str, Calls]:
    """A rank's calls as `Ledger.add` takes them."""
    return {"calls_by_group": calls_by_group([*entries, *new_groups]), "messages": messages(rank, entries)}


def find_disagreement(paths: Sequence[Path]) -> str:
    """The first call that ranks of one group made differently, in words; "" when there is none.

    paths: the ranks' record files, in order of rank. The ranks have finished, so nobody was kept waiting: but
    what the call computed is undefined.
    """
    return next(_disagreements([_read(path) for path in paths]), "")


def _disagreements(ranks: Sequence[dict[str, Calls]]) -> Iterator[str]:
    collectives = [rank.get("calls_by_group", {}) for rank in ranks]
    for name in sorted({name for calls in collectives for name in calls}):
        members = [rank for rank, calls in enumerate(collectives) if name in calls]
        made_by_all = zip(*(collectives[rank][name] for rank in members), strict=False)
        for number, made in enumerate(made_by_all, start=1):
            for rank, call in zip(members, made, strict=True):
                if _differ(made[0], call):
                    one, other = _called(members[0], made[0]), _called(rank, call)
                    yield f"ranks did not agree in their collective call {number}: {one}, {other}"
            yield from _misfits(dict(zip(members, made, strict=True)))
    sent: Calls = {lane: calls for rank in ranks for lane, calls in rank.get("messages", {}).items()}
    for lane in sorted(lane for lane in sent if lane.startswith("send ")):
        yield from _garbled(lane, sent)


def _misfits(made: Mapping[int, list[Any]]) -> Iterator[str]:
    """Parts of an all-to-all, made by these ranks, that were sent in one size and expected in another."""
    parts = {rank: _parts(call) for rank, call in made.items()}
    for one, other in combinations((rank for rank in made if parts[rank]), 2):
        found = find_misfit(one, parts[one], other, parts[other])
        if found is not None:
            sent, expected = made[found.sender], made[found.receiver]
            yield (
                f"rank {found.sender} sent {found.sent} bytes of {sent[1]} to rank {found.receiver} in "
                f"{sent[0]} at {sent[4]}, which expected {found.expected} bytes from it at {expected[4]}"
            )


def _parts(call: list[Any]) -> Parts:
    return {int(peer): both for peer, both in call[5].items()}


def _garbled(lane: str, sent: Calls) -> Iterator[str]:
    """Messages that were not received as what they were sent."""
    _, group, source, target, tag = lane.split(" ")
    if _lane("recv", group, _ANYBODY, int(target), int(tag)) in sent:
        return  # which message a receive from anybody took is not known
    received = sent.get(_lane("recv", group, int(source), int(target), int(tag)), [])
    for one, other in zip(sent[lane], received, strict=False):
        if one[1:3] != other[1:3]:
            yield (
                f"rank {source} sent {_tensor(one)} to rank {target} at {one[4]}, "
                f"which received it as {_tensor(other)} at {other[4]}"
            )


def _differ(one: list[Any], other: list[Any]) -> bool:
    return bool(
        one[0] != other[0]
        or one[3] != other[3]
        or (one[0] in _SAME_DTYPE and one[1] != other[1])
        or (one[0] in _MUST_AGREE and one[2] != other[2])
    )


def _called(rank: int, call: list[Any]) -> str:
    tensor = f" of {_tensor(call)}" if call[1] else ""
    return f"rank {rank} called {call[0]}{f' ({call[3]})' if call[3] else ''}{tensor} at {call[4]}"


def _tensor(call: list[Any]) -> str:
    return f"{call[2]} bytes of {call[1]}"


def _read(path: Path) -> dict[str, Calls]:
    try:
        found = json.loads(path.read_text())
        return {name: found[name] for name in ("calls_by_group", "messages") if isinstance(found[name], dict)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
