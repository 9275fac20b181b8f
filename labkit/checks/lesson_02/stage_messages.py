"""What a rank of a chain sends and receives, and how that is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Finding, Judge
from labkit.checks.lesson_02.small_layers import (
    activation_bytes,
)
from labkit.checks.lesson_02.stage_evidence import AGAIN, BesideWhole, cuts_of, is_last
from labkit.checks.shared.places import Place, place_of

Message = tuple[str, int, int]  # "send" or "recv", bytes, the other rank
ANNOUNCED = 512  # bytes of whole numbers beside each tensor: its shape, also as a pickled object


def crosses_each_boundary_once(*phases: str) -> Judge:
    """One activation over each boundary forward, one gradient back, and nothing else that carries values."""

    def judge(evidence: BesideWhole) -> Iterator[Finding]:
        for answer in evidence.answers:
            expected = _messages(evidence.case, evidence.inputs, place_of(evidence.case, answer.rank))
            for phase in phases:
                calls = _calls_in(phase, answer)
                seen = _values_in(calls)
                told, was = f"{phase}: {_in_words(expected[phase])}", f"{phase}: {_in_words(seen)}"
                yield Finding(seen == expected[phase], told, was, answer.rank)
                yield _announced(phase, calls, answer.rank)

    return judge


def passes_cross_once(name: str, *phases: str, prefix: str = "") -> Judge:
    """The same of whole passes, of each that was recorded under a name: what such a pass consists of, in any
    order. prefix: of the batch that went through.
    """

    def judge(evidence: BesideWhole) -> Iterator[Finding]:
        batch = evidence.again() if prefix == AGAIN else evidence
        for answer in evidence.answers:
            by_phase = _messages(batch.case, batch.inputs, place_of(batch.case, answer.rank))
            expected = [message for phase in phases for message in by_phase[phase]]
            for recorded in (*answer.earlier(name), name):
                calls = answer.collectives[recorded]
                seen = _values_in(calls)
                told, was = f"{recorded}: {_in_words(expected)}", f"{recorded}: {_in_words(seen)}"
                yield Finding(Counter(seen) == Counter(expected), told, was, answer.rank)
                yield _announced(recorded, calls, answer.rank)

    return judge


def _values_in(calls: Sequence[dict[str, JSON]]) -> list[Message]:
    """The messages that carry values, in the order in which they were started."""
    return [(c["op"], c["num_bytes"], c["peer"]) for c in calls if _carries_values(c)]


def _announced(phase: str, calls: Sequence[dict[str, JSON]], rank: int) -> Finding:
    """Beside each activation and gradient no more goes than tells its shape."""
    beside = sum(call["num_bytes"] for call in calls if not _carries_values(call))
    most = ANNOUNCED * sum(map(_carries_values, calls))
    told = f"{phase}: at most {most:,} bytes of whole numbers, which announce the shapes of what is sent"
    return Finding(beside <= most, told, f"{beside:,} bytes", rank)


def _calls_in(phase: str, answer: RankAnswer) -> list[dict[str, JSON]]:
    """The calls of a phase, which was recorded alone or is a stretch of a pass."""
    if phase in answer.collectives:
        return answer.collectives[phase]
    start, end = answer.facts[phase]
    return [call for call in answer.collectives["pass"] if start <= call["start"] <= end]


def _messages(case: Case, inputs: Inputs, place: Place) -> dict[str, list[Message]]:
    sizes, (first, last) = activation_bytes(case, inputs), cuts_of(case, place)
    forward: list[Message] = []
    if place.position > 0:
        forward.append(("recv", sizes[first], place.members[place.position - 1]))
    if not is_last(place):
        forward.append(("send", sizes[last], place.members[place.position + 1]))
    back = {"recv": "send", "send": "recv"}
    return {"forward": forward, "backward": [(back[op], n, peer) for op, n, peer in reversed(forward)]}


def _carries_values(call: dict[str, JSON]) -> bool:
    """Whether a call is more than the announcement of a tensor's shape."""
    return call["op"] not in ("send", "recv") or "int" not in call["dtype"]


def _in_words(messages: Sequence[Any]) -> str:
    return ", ".join(f"{op} {size:,} bytes, rank {peer}" for op, size, peer in messages) or "no messages"
