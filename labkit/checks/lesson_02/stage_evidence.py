"""Which layers a rank of a chain has, and what the whole model gives beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Finding, Judge
from labkit.checks.lesson_02.plain_model import (
    BesidePlain,
)
from labkit.checks.lesson_02.small_layers import (
    build_layers,
)
from labkit.checks.shared.beside import State, same
from labkit.checks.shared.places import Place, place_of

AGAIN = "again."  # before the names of a second batch


def cuts_of(case: Case, place: Place) -> tuple[int, int]:
    """The first of a rank's layers, and the first of the next rank's."""
    first, last = case.params["cuts"][place.position : place.position + 2]
    return first, last


def is_last(place: Place) -> bool:
    return place.position == place.size - 1


class BesideWhole(BesidePlain):
    """A case's answers, and what the whole model gives in one process."""

    def expected_of(self, rank: int) -> State:
        """What this rank should report of the whole model's tensors, under its own numbers."""
        place = place_of(self.case, rank)
        counts = [len(list(layer.parameters())) for layer in build_layers(self.case, self.inputs)]
        first, last = cuts_of(self.case, place)
        start, stop = sum(counts[:first]), sum(counts[:last])
        found = {}
        for key, tensor in self.plain.items():
            kind, _, number = key.partition(".")
            if kind in ("grad", "trained") and start <= int(number) < stop:
                found[f"{kind}.{int(number) - start}"] = tensor
            if (kind in ("output", "evaluated") and is_last(place)) or (
                kind == "input_grad" and place.position == 0
            ):
                found[kind] = tensor
        return found

    def again(self) -> BesideWhole:
        """The same of the second batch."""
        larger = {n.removeprefix(AGAIN): t for n, t in self.inputs.items() if n.startswith(AGAIN)}
        return BesideWhole(self.case, self.inputs | larger, self.answers)


def stage_equals(*kinds: str) -> Judge:
    """Each rank's tensors of these kinds ("output", "grad", ...) are the whole model's of its layers."""

    def judge(evidence: BesideWhole) -> Iterator[Finding]:
        for answer in evidence.answers:
            yield from _same(evidence.expected_of(answer.rank), kinds, answer)

    return judge


def second_batch_equals(*kinds: str) -> Judge:
    """The same of the second batch."""

    def judge(evidence: BesideWhole) -> Iterator[Finding]:
        again = evidence.again()
        for answer in evidence.answers:
            yield from _same(again.expected_of(answer.rank), kinds, answer, AGAIN)

    return judge


def _same(expected: State, kinds: Sequence[str], answer: RankAnswer, prefix: str = "") -> Iterator[Finding]:
    for key, tensor in expected.items():
        if key.partition(".")[0] in kinds:
            told = f"{prefix}{key} of this rank's layers, as the whole model on one process has it"
            yield same(told, tensor, answer, f"{prefix}{key}")
