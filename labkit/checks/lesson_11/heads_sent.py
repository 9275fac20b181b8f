"""What ranks that give heads for tokens send each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, every
from labkit.checks.lesson_11.between import single_numbers_between
from labkit.checks.shared.beside import calls_of
from labkit.checks.shared.places import place_of
from labkit.checks.shared.twins import each_once

BACKWARD_OF_ONE = "backward to one of q, k and v"  # what is recorded where the others need no gradient


def left_rank(calls: Sequence[Mapping[str, Any]], rank: int) -> int:
    """Bytes that went to other ranks by all-to-alls and by sends. Of an all-to-all that C++ made nobody knows
    the parts: they count as even.
    """
    away = 0
    for call in calls:
        if call["op"] == "send":
            away += call["num_bytes"]
        elif call["op"] == "all_to_all":
            group, num_bytes = call["group"], call["num_bytes"]
            parts = call["sent"] or [num_bytes // len(group)] * len(group)
            away += sum(n for to, n in zip(group, parts, strict=True) if to != rank)
    return away


def _sends(phase: str) -> Judge:
    """(n - 1)/n of the rank's queries, keys, values and output goes away each time, and nothing else is
    sent.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            for name in (*answer.earlier(phase), phase):
                yield from _leave(evidence, answer, name)

    return find


def _leave(evidence: Evidence, answer: RankAnswer, name: str) -> Iterator[Finding]:
    expected = _to_leave(evidence, answer)
    seen = left_rank(each_once(answer.collectives.get(name, [])), answer.rank)
    told = f"{name}: {expected:,} bytes to other ranks, of queries, keys, values and output"
    yield Finding(seen == expected, told, f"{seen:,} bytes", answer.rank)
    other = sorted({op for op, _ in calls_of(answer, name)} - {"all_to_all", "send", "recv"})
    yield Finding(not other, f"{name}: no other communication", ", ".join(other), answer.rank)


def _to_leave(evidence: Evidence, answer: RankAnswer) -> int:
    b, a, s, d = evidence.case.params["shape"]
    size = place_of(evidence.case, answer.rank).size
    numbers = 2 * (a + evidence.case.params["kv_heads"]) * b * (s // size) * d
    return int(numbers * evidence.inputs["q"].element_size() * (size - 1) // size)


def _sends_at_most(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """Where gradients that nobody needs may stay at home."""
    most = _to_leave(evidence, answer)
    for name in (*answer.earlier(BACKWARD_OF_ONE), BACKWARD_OF_ONE):
        calls = answer.collectives.get(name, [])
        sent, ops = left_rank(each_once(calls), answer.rank), {op for op, _ in calls_of(answer, name)}
        told = f"{BACKWARD_OF_ONE}: at most {most:,} bytes to other ranks, and no other communication"
        right = sent <= most and ops <= {"all_to_all", "send", "recv"}
        yield Finding(right, told, f"{sent:,} bytes by {', '.join(sorted(ops))}", answer.rank)


MESSAGES = every(
    _sends("forward"),
    _sends("backward"),
    lambda evidence: (f for answer in evidence.answers for f in _sends_at_most(evidence, answer)),
    single_numbers_between(0),
)
