"""Which messages and collectives a rank took part in: sentences about calls, for lesson 00."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from labkit.checks.case import JSON, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.shared.places import Place

Call = dict[str, JSON]


def each_call(name: str, judge: Judge) -> Judge:
    """That judge of each recording of a name by itself: what a call sends, it sends every time."""

    def of_each(evidence: Evidence) -> Iterator[Finding]:
        times = max((len(answer.earlier(name)) for answer in evidence.answers), default=0) + 1
        for time in range(1, times + 1):
            found = name if time == times else f"{name} (time {time})"
            answers = [_alone(answer, found) for answer in evidence.answers]
            yield from judge(replace(evidence, answers=answers))

    return of_each


def _alone(answer: RankAnswer, recording: str) -> RankAnswer:
    return replace(answer, collectives={recording: answer.collectives.get(recording, [])})


def messages(answer: RankAnswer, op: str) -> list[Call]:
    """The rank's messages with something in them, in order. op: "send" or "recv"."""
    return [c for c in _calls(answer) if c["op"] == op and c["num_bytes"] > 0]


def only_messages(answer: RankAnswer) -> Finding:
    """Whether the rank used send and recv and nothing else."""
    others = Counter(c["op"] for c in _calls(answer) if c["op"] not in ("send", "recv"))
    seen = ", ".join(f"{count} {op}" for op, count in others.items())
    return Finding(not others, "send and recv only", seen, answer.rank)


def arrived(answer: RankAnswer, num_bytes: int) -> Finding:
    """Whether enough bytes reached the rank for the result to be made of what the others sent."""
    seen = sum(c["num_bytes"] for c in messages(answer, "recv"))
    wanted = f"at least {num_bytes:,} bytes received from other ranks"
    return Finding(seen >= num_bytes, wanted, f"{seen:,} bytes", answer.rank)


def one_neighbour(answer: RankAnswer, place: Place, sparing: bool = False) -> Finding:
    """Whether the rank sends to the rank on one side of it and receives from the one on the other.

    sparing: parts without elements need not travel, so that a rank may have nothing to send or receive.
    """
    members, here = place.members, place.position
    before, after = members[here - 1], members[(here + 1) % place.size]
    to = sorted({c["peer"] for c in messages(answer, "send")})
    source = sorted({c["peer"] for c in messages(answer, "recv")})
    right = (to, source) in (([after], [before]), ([before], [after]))
    if sparing and not (to and source):
        right = {*to, *source} <= {before, after} and len(to) + len(source) < 2
    wanted = f"all sends to rank {after} and all receives from rank {before} (or the other way round)"
    seen = f"sends to {_ranks(to)}, receives from {_ranks(source)}"
    return Finding(right, wanted, seen, answer.rank)


def counted(answer: RankAnswer, op: str, count: int, largest: float) -> Finding:
    """Whether the rank has `count` messages, none of them larger than `largest` bytes."""
    sizes = [c["num_bytes"] for c in messages(answer, op)]
    seen = f"{len(sizes)} messages, the largest of {max(sizes, default=0):,} bytes"
    wanted = f"{op}: {count} messages of about {largest:,.0f} bytes"
    right = len(sizes) == count and max(sizes, default=0) <= largest
    return Finding(right, wanted, f"{op}: {seen}", answer.rank)


def at_most(answer: RankAnswer, num_bytes: int) -> Finding:
    """Whether the rank sends no more than these bytes in all."""
    seen = sum(c["num_bytes"] for c in messages(answer, "send"))
    return Finding(seen <= num_bytes, f"at most {num_bytes:,} bytes sent", f"{seen:,} bytes", answer.rank)


def in_own_dtype(answer: RankAnswer, dtype: str) -> Finding:
    """Whether the rank's messages are of this dtype."""
    seen = sorted({c["dtype"] for op in ("send", "recv") for c in messages(answer, op)} - {dtype})
    return Finding(not seen, f"messages of {dtype}", ", ".join(seen), answer.rank)


def exactly(answer: RankAnswer, expected: Sequence[tuple[str, int, int | None]]) -> Finding:
    """Whether the rank took part in these calls and no others, in any order: (operation, bytes, peer)."""
    seen = [(c["op"], c["num_bytes"], c["peer"]) for c in _calls(answer)]
    right = Counter(seen) == Counter(expected)
    return Finding(right, _in_words(expected), _in_words(seen), answer.rank)


def collectives(answer: RankAnswer) -> list[Call]:
    """Every call the rank took part in, in order."""
    return _calls(answer)


def _calls(answer: RankAnswer) -> list[Call]:
    return [c for calls in answer.collectives.values() for c in calls]


def _in_words(calls: Sequence[tuple[str, int, int | None]]) -> str:
    told = [
        f"{op} of {size:,} bytes" + ("" if peer is None else f" ({'to' if op == 'send' else 'from'} {peer})")
        for op, size, peer in calls
    ]
    return ", ".join(told) or "no communication"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_list(ranks)}" if ranks else "nobody"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
