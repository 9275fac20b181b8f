"""A part of a whole module in every mode a model is used in: with dropout or without, in the middle of a
model, frozen, in evaluation with and without gradients. What it sends, multiplies and holds there, and what
calls that are over leave behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Finding, Judge, Property, every
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, calls_of, calls_text
from labkit.checks.shared.holding import holding
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import Split, SplitEvidence, build_and_use, dtype_of, under
from labkit.checks.shared.split_judges import MORE_PRODUCTS
from labkit.checks.shared.worked import Worked

INSIDE = "inside"
CALLS_LATER = 2  # each with its backward, and without gradients: what is kept of each adds up


@dataclass(frozen=True)
class Mode:
    """How a part is called. inside: the input is no leaf; where that is None, the case's seed decides."""

    name: str
    training: bool = True
    gradients: bool = True
    frozen: bool = False
    inside: bool | None = None


MODES = (
    Mode(INSIDE, inside=True),
    Mode("frozen", frozen=True),
    Mode("in evaluation, with gradients", training=False),
    Mode("in evaluation, frozen", training=False, frozen=True),
    Mode("in training, without gradients", gradients=False),
    Mode("in evaluation, without gradients", training=False, gradients=False),
    Mode("in training once more"),
)


# -- on a rank


def use_in_every_mode(rank: Rank, split: Split) -> None:
    """As `use_part`, and another part of the same whole in each of `MODES`, trained in none.

    Answers: inside.output and inside.input_grad. Facts: mode_products, by mode the operations of a forward's
    matrix products; grown_bytes, of what is held after some calls more and was not there after the first.
    Recordings: "forward, MODE" and "backward, MODE".
    """
    build_and_use(rank, split)
    part = split.build(rank, split.handed(rank), rank.group)
    rank.fact("mode_products", {mode.name: _use_in(rank, split, part, mode) for mode in MODES})
    rank.fact("grown_bytes", _grown(rank, split, part.train().requires_grad_()))


def _use_in(rank: Rank, split: Split, part: nn.Module, mode: Mode) -> int:
    part.train(mode.training).requires_grad_(not mode.frozen)
    inside = Random(f"{rank.case.seed}/{rank.case.name}/{mode.name}").random() < 0.5
    leaves = _arguments(rank, split, asking=mode.gradients)
    handed = [
        as_inside(leaf) if leaf.requires_grad and (inside if mode.inside is None else mode.inside) else leaf
        for leaf in leaves
    ]
    with torch.set_grad_enabled(mode.gradients), rank.recording(f"forward, {mode.name}"), Worked() as worked:
        out = split.use(part, handed)
    with rank.recording(f"backward, {mode.name}"):
        _backward(rank, out)
    if mode.name == INSIDE:
        rank.answer("inside.output", out)
        rank.answer("inside.input_grad", leaves[0].grad)
    return worked.products


def _arguments(rank: Rank, split: Split, asking: bool, rows: int | None = None) -> list[Tensor]:
    """What is handed over, or the first rows of it; asking: for gradients, where there can be any."""
    found = [rank.inputs[name][:rows].clone() for name in split.arguments]
    return [tensor.requires_grad_(asking and tensor.is_floating_point()) for tensor in found]


def _backward(rank: Rank, out: Tensor) -> None:
    """Nothing, where nobody asked for a gradient."""
    if out.requires_grad:
        (out * rank.inputs["grad_output"][: len(out)] if out.dim() else out).sum().backward()


def _grown(rank: Rank, split: Split, part: nn.Module) -> int:
    """Bytes that calls leave when they are over, beside what one with a single sequence has left."""
    _go_through(rank, split, part, 1)
    before = holding()
    for _ in range(CALLS_LATER):
        _go_through(rank, split, part)
    return left_since(before, _one_call(rank.case) // 2)


def _go_through(rank: Rank, split: Split, part: nn.Module, rows: int | None = None) -> None:
    """Forward and backward, a call without gradients, and one whose result is dropped: whoever kept that
    would keep all that its backward needs. No gradient is there afterwards.
    """
    _backward(rank, split.use(part, _arguments(rank, split, True, rows)))
    with torch.no_grad():
        split.use(part, _arguments(rank, split, False, rows))
    split.use(part, _arguments(rank, split, True, rows))
    part.zero_grad()


def _one_call(case: Case) -> int:
    """Bytes of what is cut of a vector for each token: what would be worth keeping of a call has more."""
    tokens = case.params["batch"] * case.params["sequence"]
    return tokens * case.params["hidden"] * dtype_of(case).itemsize // case.ranks


# -- judges


def sends_at_most(
    forward: Callable[[SplitEvidence], Sequence[Call]],
    backward: Callable[[SplitEvidence], Sequence[Call]],
    ignore: Callable[[SplitEvidence], int] = lambda evidence: 0,
    spare: Callable[[SplitEvidence], int] = lambda evidence: 0,
) -> Judge:
    """In no mode a rank takes part in other calls than these, forward and backward: who asks for no gradient
    may need fewer.

    ignore: bytes up to which all_reduces do not count. spare: of all other calls together.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size == 1:
                continue
            for phase, calls in (("forward", forward(evidence)), ("backward", backward(evidence))):
                for name in (phase, *(f"{phase}, {mode.name}" for mode in MODES)):
                    yield _no_others(name, calls, answer, ignore(evidence), spare(evidence))

    return judge


def _no_others(phase: str, calls: Sequence[Call], answer: RankAnswer, ignore: int, spare: int) -> Finding:
    seen = [call for call in calls_of(answer, phase) if call[0] != "all_reduce" or call[1] > ignore]
    others = Counter(seen) - Counter(calls)
    passed = sum(num_bytes * times for (_, num_bytes), times in others.items()) <= spare
    return Finding(passed, f"{phase}: no more than {calls_text(calls)}", calls_text(seen), answer.rank)


def does_its_share_always(evidence: SplitEvidence) -> Iterator[Finding]:
    """In every mode a rank multiplies a t-th of what the whole module does; see `does_its_share`."""
    for answer in evidence.answers:
        share = evidence.products / place_of(evidence.case, answer.rank).size
        for mode, seen in answer.facts["mode_products"].items():
            told = f"{mode}: about {share:,.0f} operations of matrix products in a forward, this rank's share"
            yield Finding(seen <= MORE_PRODUCTS * share, told, f"{seen:,}", answer.rank)


def leaves_nothing(evidence: SplitEvidence) -> Iterator[Finding]:
    """Calls that are over leave no tensor, wherever it might be: what is held does not grow."""
    most = _one_call(evidence.case) // 2
    for answer in evidence.answers:
        told = f"no tensor kept of {CALLS_LATER} calls that are over (more than {most:,} bytes)"
        grown = answer.facts["grown_bytes"]
        yield Finding(grown <= most, told, f"{grown:,} bytes more", answer.rank)


def gives_inside(name: str) -> Judge:
    """Where nothing is dropped, "output" or "input_grad" for an input that is no leaf is the whole module's,
    roughly.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        about = evidence.split.drawn(evidence.case)
        for answer in evidence.answers if not _drops(evidence) else ():
            place, cut = place_of(evidence.case, answer.rank), about[evidence.split.arguments[0]].cut
            expected = place.block(evidence.reference(answer)[name], cut)
            seen = answer.tensors.get(f"inside.{name}")
            told = f"{name.replace('_', ' ')}, x being no leaf,"
            yield in_proportion(told, [expected], [seen], answer.rank)

    return judge


def right_gradients(evidence: SplitEvidence) -> Iterator[Finding]:
    """Where nothing is dropped, the gradients of the parameters are this rank's blocks, roughly."""
    for answer in evidence.answers if not _drops(evidence) else ():
        expected = evidence.blocks(under("grad.", evidence.reference(answer)), answer)
        seen = [answer.tensors.get(f"grad.{name}") for name in expected]
        yield in_proportion("the gradients of all parameters", list(expected.values()), seen, answer.rank)


right_in_modes = every(gives_inside("output"), gives_inside("input_grad"), right_gradients)


def _drops(evidence: SplitEvidence) -> bool:
    return bool(evidence.case.params.get("dropout", 0.0))


def in_modes_too(share: Property) -> Property:
    """The property of `own_share`, looked at in cases "modes" as well, in each of these."""
    judge = every(share.on["values"], does_its_share_always)
    return replace(share, also={**share.also, "modes": judge})
