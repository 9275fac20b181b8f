"""What ranks did, played again on a machine of fixed speeds: the same times whatever computer it ran on.

What counts is what each rank did in which order, and what had to wait for what: operations with their
arithmetic and memory traffic, calls with their bytes, and where they were waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from labkit.record.events import Collective, Span
from labkit.record.files import Record

_TWICE_AROUND = ("all_reduce", "barrier")


class CannotReplay(ValueError):
    """The ranks' acts do not fit together: some call was not made by all of its ranks."""


@dataclass(frozen=True)
class Act:
    """One thing a rank did. kind decides what else is set.

    compute: `ops` operations with these flops and num_bytes read and written.
    start: the `number`-th call of this rank (from 0), with its op, num_bytes, members and, of a send or recv,
        peer and tag. crossing: of an all_to_all, the more of what leaves the rank and what comes to it.
    wait: for the call of that number.
    """

    kind: Literal["compute", "start", "wait"]
    flops: int = 0
    num_bytes: int = 0
    ops: int = 0
    number: int = -1
    op: str = ""
    members: tuple[int, ...] = ()
    peer: int = -1
    tag: int = 0
    crossing: int = 0


@dataclass(frozen=True)
class Machine:
    """A machine of fixed speeds, one like another on every rank.

    flops, memory: a second. launch: seconds that each operation costs at least. alpha: seconds of latency of
    a message. bandwidth: bytes a second of a rank's link, in each direction.
    """

    flops: float = 50e9
    memory: float = 20e9
    launch: float = 2e-6
    alpha: float = 10e-6
    bandwidth: float = 1e9

    def compute_seconds(self, act: Act) -> float:
        """The launches, and whichever takes longer: arithmetic or memory."""
        return act.ops * self.launch + max(act.flops / self.flops, act.num_bytes / self.memory)

    def call_seconds(self, op: str, num_bytes: int, ranks: int) -> float:
        """By the ring's alpha-beta model of lesson 00. num_bytes: of one rank's input; of an all-to-all those
        that cross the busiest link.
        """
        share = (ranks - 1) / ranks
        passes = {
            "all_reduce": 2 * share,
            "all_gather": ranks - 1.0,
            "gather": ranks - 1.0,  # to one of them
            "reduce_scatter": share,
            "all_to_all": 1.0,
            "barrier": 0.0,
        }
        messages = 1 if op in ("send", "recv") else (ranks - 1) * (2 if op in _TWICE_AROUND else 1)
        return messages * self.alpha + passes.get(op, 1.0 if ranks > 1 else 0.0) * num_bytes / self.bandwidth


DEFAULT = Machine()
Link = tuple[int, str]  # a rank, and "out" or "in"


@dataclass(eq=False)
class _Call:
    """One call, as the ranks come to it. links: what it takes up. come: when each rank came. num_bytes: of
    the rank with most.
    """

    act: Act
    number: int
    links: Sequence[Link]
    needed: int
    come: dict[int, float] = field(default_factory=dict)
    num_bytes: int = 0
    end: float | None = None


@dataclass(eq=False)
class _Rank:
    """How far one rank is. released: number of a call -> when the rank had waited for it."""

    rank: int
    acts: Sequence[Act]
    position: int = 0
    now: float = 0.0
    calls: list[_Call] = field(default_factory=list)
    released: dict[int, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


class _Replay:
    def __init__(self, acts: Sequence[Sequence[Act]], machine: Machine) -> None:
        self.machine = machine
        self.ranks = [_Rank(number, own) for number, own in enumerate(acts)]
        self.open: dict[Hashable, _Call] = {}  # some rank has come to it, and it has not been carried out
        self.free_at: dict[Link, float] = {}
        self.counts: Counter[Hashable] = Counter()
        self.made = 0

    def run(self) -> None:
        """All ranks go as far as they can; of the calls that all came to, the first to begin is carried out;
        and again.
        """
        while True:
            for rank in self.ranks:
                self._advance(rank)
            ready = {key: self._begin(c) for key, c in self.open.items() if len(c.come) == c.needed}
            if not ready:
                break
            first = min(ready, key=lambda key: (ready[key], self.open[key].number))
            self._carry_out(self.open.pop(first), ready[first])
        stuck = [rank.rank for rank in self.ranks if rank.position < len(rank.acts)]
        if stuck:
            raise CannotReplay(f"ranks {stuck} wait for calls that not all of their ranks made")

    def _advance(self, rank: _Rank) -> None:
        while rank.position < len(rank.acts):
            act = rank.acts[rank.position]
            if act.kind == "wait":
                end = rank.calls[act.number].end
                if end is None:
                    return
                rank.now = max(rank.now, end)
                rank.released.setdefault(act.number, rank.now)
            elif act.kind == "start":
                self._come(rank, act)
            else:
                begin, rank.now = rank.now, rank.now + self.machine.compute_seconds(act)
                rank.spans.append(Span(rank.rank, "compute", "compute", begin, rank.now))
            rank.position += 1

    def _come(self, rank: _Rank, act: Act) -> None:
        """A rank comes to its next call of this kind: the first of its ranks opens it."""
        lane, links = _lane(rank.rank, act)
        key = (lane, self.counts[rank.rank, lane])
        self.counts[rank.rank, lane] += 1
        if key not in self.open:
            needed = 2 if act.op in ("send", "recv") else len(act.members)
            self.open[key] = _Call(act, self.made, links, needed)
            self.made += 1
        call = self.open[key]
        call.come[rank.rank] = rank.now
        call.num_bytes = max(call.num_bytes, act.crossing if act.op == "all_to_all" else act.num_bytes)
        rank.calls.append(call)

    def _begin(self, call: _Call) -> float:
        return max([*call.come.values(), *(self.free_at.get(link, 0.0) for link in call.links)])

    def _carry_out(self, call: _Call, begin: float) -> None:
        call.end = begin + self.machine.call_seconds(call.act.op, call.num_bytes, call.needed)
        self.free_at.update(dict.fromkeys(call.links, call.end))


def _lane(rank: int, act: Act) -> tuple[Hashable, list[Link]]:
    """What is counted together, and the links it takes up."""
    if act.op in ("send", "recv"):
        source, target = (rank, act.peer) if act.op == "send" else (act.peer, rank)
        return (source, target, act.tag), [(source, "out"), (target, "in")]
    return (act.op, act.members), [(member, way) for member in act.members for way in ("out", "in")]


def replay(acts: Sequence[Sequence[Act]], machine: Machine = DEFAULT) -> Record:
    """What each rank's acts come to on that machine, as a record: compute spans, and calls with their times.

    A call begins when all of its ranks have come to it and their links are free; it ends for a rank when the
    rank has waited for it, and nobody waits for those without an end. CannotReplay where ranks wait for ever.
    """
    playing = _Replay(acts, machine)
    playing.run()
    calls = [_recorded(rank, number) for rank in playing.ranks for number in range(len(rank.calls))]
    spans = [span for rank in playing.ranks for span in rank.spans]
    return Record(
        len(acts), sorted(calls, key=lambda c: c.start), sorted(spans, key=lambda s: s.start), [], []
    )


def _recorded(rank: _Rank, number: int) -> Collective:
    call = rank.calls[number]
    return Collective(
        rank=rank.rank,
        op=call.act.op,
        num_bytes=call.act.num_bytes,
        shape=(),
        dtype="",
        group=call.act.members,
        peer=None if call.act.peer < 0 else call.act.peer,
        order=number,
        start=call.come[rank.rank],
        end=rank.released.get(number),
        source="python",
        line="",
        tag=call.act.tag,
    )
