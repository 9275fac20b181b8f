"""A layer of lesson 06 where nobody asks for a gradient of x, or of anything; and what its calls leave."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from labkit.checks.exercise import Evidence, Finding, Judge, every
from labkit.checks.lesson_06.twice import MADE, Calls, sends_inside, use_frozen, use_twice
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_are, nbytes, observe, same
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import holding
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import Split, SplitEvidence, build_and_use, loaded, under
from labkit.checks.shared.split_judges import MORE_PRODUCTS, sends
from labkit.checks.shared.worked import Worked

INFERENCE = "inference"  # the recording of a call in evaluation, without gradients
UNASKED = "x unasked"  # as it is after calls that ask it for no gradient


# -- on a rank


def use_unasked(rank: Rank, split: Split) -> None:
    """`use_part`, `use_twice`, `use_frozen`, and then a call in training and one in evaluation, without
    gradients, with an x that asks for none. Answer: "x unasked", what it holds afterwards. Facts: asks,
    whether it does then; inferred_products, of the latter; step_products, of those before. Recording:
    inference.
    """
    part = build_and_use(rank, split)
    rank.fact("step_products", use_twice(rank, split, part) | use_frozen(rank, split, part))
    x = rank.inputs["x"].clone()
    split.use(part, [x])
    rank.fact("asks", x.requires_grad)
    with torch.no_grad(), rank.recording(INFERENCE), Worked() as worked:
        split.use(part.eval(), [x])
    rank.answer(UNASKED, x)
    rank.fact("inferred_products", worked.products)


def count_kept(rank: Rank, split: Split) -> None:
    """Facts: left_bytes, of tensors that forward, backward and a call without gradients leave when they are
    over, after the same with one row; kept_bytes, what a forward leaves for its backward, where the output
    has been let go. Answers as `observe` gives them.
    """
    part = split.build(rank, split.handed(rank), rank.group)

    def go_through(rows: int) -> None:
        leaf = rank.inputs["x"][:rows].clone().requires_grad_()
        part(leaf * 2.0).sum().backward()
        with torch.no_grad():
            part(leaf)

    go_through(1)
    before = holding()
    go_through(len(rank.inputs["x"]))
    rank.fact("left_bytes", left_since(before))
    leaf = rank.inputs["x"].clone().requires_grad_()
    rank.fact("kept_bytes", bytes_kept(lambda: lambda: part(leaf * 2.0).sum()))
    part.zero_grad()
    observe(rank, part, [rank.inputs["x"].clone().requires_grad_()], rank.inputs["grad_output"].clone())


# -- judges


def asks_nothing(evidence: Evidence) -> Iterator[Finding]:
    """An x that asks for no gradient does not by being used."""
    for answer in evidence.answers:
        told = "an x that asks for no gradient as it was"
        yield Finding(answer.facts["asks"] is False, told, "x.requires_grad is set", answer.rank)


def leaves_x(evidence: SplitEvidence) -> Iterator[Finding]:
    """`asks_nothing`, and such an x holds what it held; so does one that is no leaf."""
    yield from asks_nothing(evidence)
    cut = evidence.split.drawn(evidence.case)["x"].cut
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        given = place.block(evidence.inputs["x"][place.index], cut)
        yield same("an x that asks for no gradient, as it was handed over", given, answer, UNASKED)
        if MADE in answer.tensors:  # or the gradients are lost
            yield same("an x that another operation has made, as it was handed over", given, answer, MADE)


def sends_however_used(forward: Calls, backward: Calls) -> Judge:
    """`sends`, `sends_inside`, and without gradients the calls of a forward."""
    return every(sends(forward, backward), sends_inside(forward, backward), _infers_by(forward))


def _infers_by(expected: Calls) -> Judge:
    """Each rank takes part in exactly these calls without gradients. A group of one may or may not."""

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size > 1:
                yield calls_are(INFERENCE, expected(evidence), answer)

    return judge


def infers_its_share(evidence: SplitEvidence) -> Iterator[Finding]:
    """Without gradients too a rank multiplies a t-th of what the whole layer does."""
    whole = _products_of_a_forward(evidence)
    for answer in evidence.answers:
        size, seen = place_of(evidence.case, answer.rank).size, answer.facts["inferred_products"]
        told = f"about {whole / size:,.0f} operations of matrix products without gradients, 1/{size} of all"
        yield Finding(seen <= MORE_PRODUCTS * whole / size, told, f"{seen:,}", answer.rank)


def _products_of_a_forward(evidence: SplitEvidence) -> int:
    full = loaded(evidence.split.plain(evidence.case), under("full.", evidence.inputs))
    with torch.no_grad(), Worked() as worked:
        evidence.split.use(full, [evidence.inputs["x"][0]])
    return worked.products


def keeps_its_input(evidence: SplitEvidence) -> Iterator[Finding]:
    """Of a forward that is over, x waits for backward, and no other tensor; and `leaves_nothing`."""
    for answer in evidence.answers:
        place, about = place_of(evidence.case, answer.rank), evidence.split.drawn(evidence.case)
        x = nbytes(place.block(evidence.inputs["x"][0], about["x"].cut))
        out = evidence.bytes_of("grad_output") // place.size
        told = f"x kept for backward, {x:,} bytes, and not the output or a part of it, {out:,} bytes"
        kept = answer.facts["kept_bytes"]
        yield Finding(kept < x + out / 2, told, f"{kept:,} bytes", answer.rank)
    yield from leaves_nothing(evidence)


def leaves_nothing(evidence: SplitEvidence) -> Iterator[Finding]:
    """Once calls are over, no tensor of theirs is left, wherever it might be."""
    for answer in evidence.answers:
        out = evidence.bytes_of("grad_output") // place_of(evidence.case, answer.rank).size
        left = answer.facts["left_bytes"]
        told = f"no tensor kept of calls that are over (a part of the output has {out:,} bytes)"
        yield Finding(left < out / 4, told, f"{left:,} bytes", answer.rank)
