"""What ranks with parts of a GPT and of its sequences may send each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding, Judge, every
from labkit.checks.lesson_11.between import single_numbers_between
from labkit.checks.lesson_11.divided_gpt import Spot, spot_of
from labkit.checks.lesson_11.losses import MOST_BYTES
from labkit.checks.lesson_11.one_process import SHORTEST, OneProcess
from labkit.checks.shared.beside import State, calls_text, nbytes
from labkit.checks.shared.split import dtype_of
from labkit.checks.shared.sums import SHARES, summed_bytes
from labkit.checks.shared.twins import each_once

EVALUATION = "without gradients"  # what is recorded of calls without a graph
MAKING = "making"  # what is recorded while a part is made of a whole model


def evaluated_tokens(own: int) -> tuple[int, int, int]:
    """How many of a rank's `own` tokens are evaluated in each of three calls."""
    return max(SHORTEST, own - 2), SHORTEST, SHORTEST


def _tokens(evidence: OneProcess, spot: Spot) -> int:
    """Tokens of a rank in a step of training."""
    p = evidence.case.params
    return int(p["rows"] * p["sequence"] // len(spot.context))


def _message_bytes(evidence: OneProcess, spot: Spot, tokens: int) -> int:
    """Bytes of keys, or of values, of a rank's heads."""
    numbers = tokens * evidence.case.params["hidden"] // len(spot.tensor)
    return int(numbers * dtype_of(evidence.case).itemsize)


def _forward_bytes(evidence: OneProcess, spot: Spot, tokens: int) -> int:
    """Bytes that a forward sends round the ring."""
    messages: int = evidence.case.params["layers"] * 2 * (len(spot.context) - 1)
    return messages * _message_bytes(evidence, spot, tokens)


def _keys_alone(phase: str, *more: str) -> Judge:
    """Between the pieces of a sequence go the ring's messages, beside a loss's two numbers and the sums of
    gradients, in each step; what tensor-parallel ranks send each other does not count. more: recordings that
    belong to the phase.
    """

    def find(evidence: OneProcess, answer: RankAnswer) -> Iterator[Finding]:
        times = _each_time(answer, phase, *more)
        return (finding for names in times for finding in find_in(evidence, answer, names))

    def find_in(evidence: OneProcess, answer: RankAnswer, names: Sequence[str]) -> Iterator[Finding]:
        spot = spot_of(evidence.case, answer.rank)
        size, backward = len(spot.context), phase == "backward"
        messages = evidence.case.params["layers"] * (4 * size - 2) * (size > 1)
        tokens = _tokens(evidence, spot)
        sent_back = messages * _message_bytes(evidence, spot, tokens)
        due = sent_back if backward else _forward_bytes(evidence, spot, tokens)
        found = [c for name in names for c in each_once(answer.collectives[name])]
        calls = [c for c in found if not _within(c, spot.tensor)]
        sent = sum(c["num_bytes"] for c in calls if c["op"] == "send" and _within(c, spot.context))
        told = f"{phase}: {due:,} bytes sent to the next piece of the sequence"
        yield Finding(sent == due, told, f"{sent:,} bytes", answer.rank)
        rest = [c for c in calls if c["op"] not in ("send", "recv")]
        seen = calls_text([(c["op"], c["num_bytes"]) for c in rest])
        if backward:
            state = spot.cut(evidence.states["trained"])
            told = (
                f"backward: beside that, gradients of {sum(map(nbytes, state.values())):,} bytes summed once"
            )
            yield Finding(_summed_once(rest, state), told, seen, answer.rank)
        else:
            told = f"forward: beside that, at most {MOST_BYTES} bytes for a sum and a number of targets"
            yield Finding(sum(c["num_bytes"] for c in rest) <= MOST_BYTES, told, seen, answer.rank)

    return lambda evidence: (f for answer in evidence.answers for f in find(evidence, answer))


def _no_more_in_evaluation(evidence: OneProcess) -> Iterator[Finding]:
    """Of one row of fewer tokens, the messages of a forward, and a loss's two numbers."""
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        tokens = evaluated_tokens(evidence.case.params["sequence"] // len(spot.context))
        for name, own in zip((*answer.earlier(EVALUATION), EVALUATION), tokens, strict=True):
            due = _forward_bytes(evidence, spot, own)
            calls = [c for c in each_once(answer.collectives[name]) if not _within(c, spot.tensor)]
            sent = sum(c["num_bytes"] for c in calls if c["op"] == "send")
            told = f"{EVALUATION}: {due:,} bytes sent to the next piece of the sequence"
            yield Finding(sent == due, told, f"{sent:,} bytes", answer.rank)
            rest = [(c["op"], c["num_bytes"]) for c in calls if c["op"] not in ("send", "recv")]
            told = f"{EVALUATION}: beside that, at most {MOST_BYTES} bytes for a sum and a number of targets"
            yield Finding(sum(n for _, n in rest) <= MOST_BYTES, told, calls_text(rest), answer.rank)


def _nothing_where_it_is_made(evidence: OneProcess) -> Iterator[Finding]:
    """Each rank is handed the weights that it needs: none has to hear of another's."""
    for answer in evidence.answers:
        tensor = spot_of(evidence.case, answer.rank).tensor
        calls = [c for c in each_once(answer.collectives[MAKING]) if not _within(c, tensor)]
        seen = calls_text([(c["op"], c["num_bytes"]) for c in calls])
        told = f"where a part is made: at most {MOST_BYTES} bytes of single numbers"
        yield Finding(sum(c["num_bytes"] for c in calls) <= MOST_BYTES, told, seen, answer.rank)


def _summed_once(calls: Sequence[Mapping[str, Any]], state: State) -> bool:
    """Whether no more is moved than by one sum over ranks of what a state holds. Each tensor that the ranks
    do not divide may be filled up.
    """
    ranks = len(calls[0]["group"]) if calls else 1
    filling = sum(-t.numel() % ranks * t.element_size() for t in state.values())
    kinds = {c["op"] for c in calls}
    most = sum(map(nbytes, state.values())) + filling
    return kinds <= {*SHARES, "all_gather"} and summed_bytes(calls) <= most


def _summed_at_all(gradients: Judge) -> Judge:
    """Where gradients are right somebody has summed them: in backward, or when asked to. Of tables a rank may
    send less, rows that somebody has looked at.
    """

    def judge(evidence: OneProcess) -> Iterator[Finding]:
        if not all(finding.passed for finding in gradients(evidence)):
            return
        for answer in evidence.answers:
            yield from _sums(evidence, answer)

    return judge


def _sums(evidence: OneProcess, answer: RankAnswer) -> Iterator[Finding]:
    spot = spot_of(evidence.case, answer.rank)
    state = spot.cut(evidence.states["trained"])
    least = sum(nbytes(t) for n, t in state.items() if n.startswith(("blocks.", "norm.")))
    told = f"gradients of at least {least:,} bytes summed in backward and `sum_gradients`"
    for names in _each_time(answer, "backward", "sums") if len(spot.batch) > 1 else ():
        calls = [c for name in names for c in answer.collectives[name] if c["op"] not in ("send", "recv")]
        seen = summed_bytes(c for c in calls if not _within(c, spot.tensor))
        yield Finding(seen >= least, told, f"{seen:,.0f} bytes", answer.rank)


def _each_time(answer: RankAnswer, *phases: str) -> Iterator[tuple[str, ...]]:
    """The names of the recordings of these phases, step by step."""
    return zip(*([*answer.earlier(name), name] for name in phases), strict=True)


def _within(call: Mapping[str, Any], members: list[int]) -> bool:
    return sorted(call["group"]) == sorted(members)


def traffic(gradients: Judge) -> Judge:
    """A judge of all that is sent. gradients: of whether they are right."""
    return every(
        _keys_alone("forward"),
        _keys_alone("backward", "sums"),
        _no_more_in_evaluation,
        _nothing_where_it_is_made,
        _summed_at_all(gradients),
        single_numbers_between(MOST_BYTES),
    )
