"""What ranks that share out documents say to each other: gradients, and not who works on what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.shared.beside import calls_of, calls_text
from labkit.checks.shared.places import place_of
from labkit.checks.shared.twins import Recorded, each_once

TELLING = {"broadcast", "scatter", "send", "recv"}  # calls that bring what one rank has to others
FEW_BYTES = 16  # a number or two, of which no shares can be read
NUMBER_BYTES = 8  # of one number


def without_talking(evidence: Evidence, answer: RankAnswer) -> Finding:
    """What adds up gradients comes from all; what one rank tells others is who works on what."""
    told = sorted({op for op, _ in calls_of(answer, "training")} & TELLING)
    seen = f"also {' and '.join(told)}"
    return Finding(not told, "gradients added up, and shares that nobody has to be told", seen, answer.rank)


def shares_from_nobody(gradients: Callable[[Evidence], Sequence[int]]) -> Judge:
    """What goes from rank to rank before a step's work begins is who works on what, by whatever call; so is
    what goes there before a rank's last document, if it is no gradients.

    gradients: the bytes of each parameter's.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        sizes = _sizes(gradients(evidence))
        for answer in evidence.answers:
            a_number_each = NUMBER_BYTES * place_of(evidence.case, answer.rank).size
            for step, (begin, *given) in enumerate(answer.facts["moments"]):
                if given:
                    told = f"bytes sent before the first document of step {step}"
                    yield _at_most(FEW_BYTES, told, _between(answer, begin, given[0]), answer)
                    others = [c for c in _between(answer, begin, given[-1]) if not _is_gradient(c, sizes)]
                    told = f"bytes that are no gradients sent before the last document of step {step}"
                    yield _at_most(max(FEW_BYTES, a_number_each), told, others, answer)

    return find


def sends_gradients(gradients: Callable[[Evidence], Sequence[int]]) -> Judge:
    """Who does not work on everything needs others' gradients. Half of the bytes will do: that is what it
    takes, however they are sent.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        least = sum(gradients(evidence)) // 2
        for answer in evidence.answers:
            sent = sum(num_bytes for _, num_bytes in calls_of(answer, "training"))
            alone, steps = place_of(evidence.case, answer.rank).size == 1, len(answer.facts["moments"])
            told = f"gradients of all ranks added up, {least:,} bytes or more in each of {steps} steps"
            yield Finding(alone or sent >= steps * least, told, f"{sent:,} bytes in all", answer.rank)

    return find


def _at_most(most: int, told: str, calls: Sequence[Recorded], answer: RankAnswer) -> Finding:
    seen = [(call["op"], call["num_bytes"]) for call in calls]
    right = sum(num_bytes for _, num_bytes in seen) <= most
    return Finding(right, f"at most {most} {told}", calls_text(seen), answer.rank)


def _between(answer: RankAnswer, begin: float, end: float) -> list[Recorded]:
    """The calls made from one second to another."""
    return [call for call in each_once(answer.collectives["training"]) if begin <= call["start"] < end]


def _sizes(gradients: Sequence[int]) -> set[int]:
    """Bytes of each bucket that neighbouring parameters could make."""
    return {size for first in range(len(gradients)) for size in accumulate(gradients[first:])}


def _is_gradient(call: Recorded, sizes: set[int]) -> bool:
    """Whether a call is as large as gradients are, with a number or two, and of their kind."""
    return "float" in call["dtype"] and any(0 <= call["num_bytes"] - size <= FEW_BYTES for size in sizes)
