"""What a layer of experts sends and which experts it calls, each time: in training, evaluation and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.lesson_12.counts import COUNT_BYTES
from labkit.checks.lesson_12.gathered import FIRST_AGAIN, Gathered
from labkit.checks.shared.beside import STEPS, Call, calls_of, calls_text
from labkit.checks.shared.company import in_company
from labkit.checks.shared.forwards import note_forwards
from labkit.checks.shared.places import place_of

STEP_PHASES = ("forward in step", "backward in step")  # and which
Calls = list[list[list[int]]]  # of each expert, first of itself and then of each module in it: rows of calls


class Watched:
    """Notes with how many rows experts, and the modules in them, are called from now on, by whatever way."""

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        self._calls = [[_noted(module) for module in (e, *e.children())] for e in experts]

    def so_far(self) -> Calls:
        """The calls since it was last asked."""
        found = [[list(calls) for calls in modules] for modules in self._calls]
        for modules in self._calls:
            for calls in modules:
                calls.clear()
        return found


def _noted(module: nn.Module) -> list[int]:
    calls: list[int] = []
    note_forwards(module, lambda rows, *_: calls.append(int(rows.shape[0])))
    return calls


def both(one: Calls, other: Calls) -> Calls:
    """The calls of two phases as those of one."""
    return [[a + b for a, b in zip(*modules, strict=True)] for modules in zip(one, other, strict=True)]


# -- judges


def has_few_messages(evidence: Gathered) -> Iterator[Finding]:
    """Forward, in whatever mode: counts, rows there, rows back. Backward: twice rows."""
    for answer in in_company(evidence):
        visits = _all_visits(evidence)
        rows = _rows_calls(evidence, answer.rank, visits[0], 0)
        yield _forward(evidence, answer, "forward", rows)
        yield _forward(evidence, answer, "evaluation", _rows_calls(evidence, answer.rank, visits[1], 1))
        yield _backward(answer, "backward", rows)
        if evidence.case.kind == "again":
            again = _rows_calls(evidence, answer.rank, _all_visits(evidence, FIRST_AGAIN)[1], 1)
            yield _forward(evidence, answer, "again", again)


def _forward(evidence: Gathered, answer: RankAnswer, phase: str, rows: list[Call]) -> Finding:
    place, local = place_of(evidence.case, answer.rank), evidence.case.params["shape"][2]
    counts = [("all_to_all", num_bytes * local * place.size) for num_bytes in COUNT_BYTES]
    return _among(answer, phase, [[one, *rows] for one in counts])


def _backward(answer: RankAnswer, phase: str, rows: list[Call]) -> Finding:
    return _among(answer, phase, [rows])


def _among(answer: RankAnswer, phase: str, allowed: list[list[Call]]) -> Finding:
    seen = calls_of(answer, phase)
    told = f"{phase}: {calls_text(allowed[0])}"
    return Finding(sorted(seen) in map(sorted, allowed), told, f"{phase}: {calls_text(seen)}", answer.rank)


def _all_visits(evidence: Gathered, first: int = 0) -> list[dict[int, Tensor]]:
    """For each step rank -> visits of each expert, with the router that was handed over."""
    return [
        {answer.rank: evidence.visits(answer.rank, step, first) for answer in evidence.answers}
        for step in range(STEPS)
    ]


def _rows_calls(evidence: Gathered, rank: int, visits: dict[int, Tensor], step: int) -> list[Call]:
    """The calls in which a rank's rows leave it and those of its experts arrive, in either order."""
    row = evidence.case.params["shape"][0] * evidence.inputs[f"tokens.{rank}.{step}"].element_size()
    arrived = _arrived(evidence, rank, visits)
    return [("all_to_all", int(rows) * row) for rows in (visits[rank].sum(), arrived.sum())]


def _arrived(evidence: Gathered, rank: int, visits: dict[int, Tensor]) -> Tensor:
    """[local]: the rows of all ranks for each of a rank's experts."""
    place, local = place_of(evidence.case, rank), evidence.case.params["shape"][2]
    everywhere = sum(visits[member] for member in place.members)
    assert isinstance(everywhere, Tensor)
    return everywhere[place.position * local : (place.position + 1) * local]


def calls_each_once(evidence: Gathered) -> Iterator[Finding]:
    """Forward and backward together, and each other forward."""
    visits = _all_visits(evidence)
    for answer in evidence.answers:
        yield from _one_call(evidence, answer, "", answer.facts["seen"], visits[0])
        told = ", evaluated without a graph"
        yield from _one_call(evidence, answer, told, answer.facts["evaluated"], visits[1])
        if evidence.case.kind == "again":
            again = _all_visits(evidence, FIRST_AGAIN)[1]
            yield from _one_call(evidence, answer, ", a second time", answer.facts["again"], again)


def _one_call(
    evidence: Gathered, answer: RankAnswer, when: str, seen: Calls, visits: dict[int, Tensor]
) -> Iterator[Finding]:
    expected = [[int(rows)] for rows in _arrived(evidence, answer.rank, visits)]
    told = f"one call of each expert{when}, with the rows of all ranks: {expected} rows"
    calls = [own for own, *_ in seen]
    yield Finding(calls == expected, told, f"{calls}", answer.rank)
    inside = [parts for _, *parts in seen]
    right = all(part == rows for parts, rows in zip(inside, expected, strict=True) for part in parts)
    yield Finding(right, f"{told}, and so of each module in it", f"{inside}", answer.rank)


def has_few_messages_in_steps(evidence: Gathered) -> Iterator[Finding]:
    """Of each step of training as of the first call: `has_few_messages`. Where weights are others than they
    should be, rows go elsewhere: that is looked at where they are right.
    """
    for step in range(STEPS):
        visits = {a.rank: evidence.visits_in_training(a.rank, step) for a in evidence.answers}
        for answer in in_company(evidence):
            rows = _rows_calls(evidence, answer.rank, visits, step)
            forward, backward = (f"{phase} {step}" for phase in STEP_PHASES)
            yield _forward(evidence, answer, forward, rows)
            yield _backward(answer, backward, rows)


def calls_each_once_in_steps(evidence: Gathered) -> Iterator[Finding]:
    """Of each step of training as of the first call: `calls_each_once`, where weights are right."""
    for step in range(STEPS):
        visits = {a.rank: evidence.visits_in_training(a.rank, step) for a in evidence.answers}
        for answer in evidence.answers:
            yield from _one_call(evidence, answer, f" in step {step}", answer.facts["steps"][step], visits)
