"""Findings about modules that are cut over the ranks of a group: values, what they keep, send and compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.checks.case import RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Finding, Judge, every
from labkit.checks.shared.beside import (
    SLACK_BYTES,
    STEP_OF,
    STEPS,
    Call,
    calls_are,
    calls_of,
    calls_text,
    holds_only,
    nbytes,
    same,
)
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import SplitEvidence, under

MORE_PRODUCTS = 1.25  # times a rank's share: rows of a vocabulary that is filled up
MORE_MADE = 2.5  # times what the whole module makes: a rank makes less, but for copies


def equals(*names: str) -> Judge:
    """What ranks reported under these names is their part of what the whole module gives.

    names: "output" (in training and in evaluation, and whether that, and what the module was given, stays as
        it is), "input_grad" (passed over where there is none), "grad" or "trained" for all parameters,
        "grad.bias" for one.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        for name in names:
            kind, _, only = name.partition(".")
            for answer in evidence.answers:
                if kind in ("grad", "trained"):
                    yield from evidence.parameters(kind, answer, only)
                elif kind in evidence.reference(answer):
                    yield evidence.activation(kind, answer)
                if kind == "output":
                    yield evidence.activation("evaluated", answer)
                    yield from evidence.untouched(answer)

    return judge


def gives_output(evidence: SplitEvidence) -> Iterator[Finding]:
    """Each rank's output of one call is its part of what the whole module gives."""
    for answer in evidence.answers:
        yield evidence.activation("output", answer)


EVERYTHING = equals("output", "input_grad", "grad", "trained")


def keeps_blocks(evidence: SplitEvidence) -> Iterator[Finding]:
    """Each rank holds its blocks and nothing more, and the module they came from is as it was."""
    full = under("full.", evidence.inputs)
    for answer in evidence.answers:
        blocks = evidence.blocks(full, answer)
        yield _has_shapes({name: list(block.shape) for name, block in blocks.items()}, answer)
        shared = ", ".join(answer.facts["shared"])
        yield Finding(not shared, "memory of its own, apart from the whole module's", shared, answer.rank)
        replaced = ", ".join(answer.facts["replaced"])
        yield Finding(not replaced, "the whole module left as it was", f"others: {replaced}", answer.rank)
        for name, tensor in evidence.split.hand(evidence.case, evidence.inputs, answer.rank).items():
            if name.startswith("full."):
                told = f"{name.removeprefix('full.')} of the whole module as it was handed over"
                yield same(told, tensor, answer, name)
        yield holds_only(sum(map(nbytes, blocks.values())), sum(map(nbytes, full.values())), answer)
        left, told = answer.facts["left_bytes"], "no tensors left in attributes by calls that are over"
        yield Finding(left <= SLACK_BYTES, told, f"{left:,} bytes", answer.rank)


def does_its_share(evidence: SplitEvidence) -> Iterator[Finding]:
    """A rank multiplies a t-th of what the whole module does, and a few rows or columns more where these are
    filled up.
    """
    for answer in evidence.answers:
        size, seen = place_of(evidence.case, answer.rank).size, answer.facts["products"]
        share = evidence.products / size
        told = f"about {share:,.0f} operations of matrix products in a forward, 1/{size} of all"
        yield Finding(seen <= MORE_PRODUCTS * share, told, f"{seen:,}", answer.rank)


def makes_its_share(evidence: SplitEvidence) -> Iterator[Finding]:
    """As `does_its_share`, of products that are made of other operations: an element for each multiply-add.
    Beside these, a rank may make some times the elements that the whole module makes.
    """
    for answer in evidence.answers:
        size, products = place_of(evidence.case, answer.rank).size, answer.facts["products"]
        most = int(MORE_PRODUCTS * evidence.products / size / 2 + MORE_MADE * evidence.made)
        seen = answer.facts["made"] + products // 2
        told = f"at most {most:,} elements and multiply-adds in a forward: of products 1/{size} of all"
        yield Finding(seen <= most, told, f"{seen:,}", answer.rank)


def _has_shapes(shapes: Mapping[str, Sequence[int]], answer: RankAnswer) -> Finding:
    seen = answer.facts["shapes"]
    wrong = sorted(name for name in shapes.keys() | seen.keys() if shapes.get(name) != seen.get(name))
    told = ", ".join(f"{name} {shapes.get(name, 'absent')}" for name in wrong) or "its blocks"
    was = ", ".join(f"{name} {seen.get(name, 'absent')}" for name in wrong)
    return Finding(not wrong, f"parameters {told}", was, answer.rank)


def own_block_decides(evidence: SplitEvidence) -> Iterator[Finding]:
    """What a rank computes depends on its own blocks of the parameters and on no others."""
    for answer in evidence.answers:
        plain, others, own = (answer.tensors[f"output.{run}"] for run in ("plain", "others", "own"))
        change = difference(plain, others)
        told = "the same output, whatever this rank's copy of the full layer holds outside its own block"
        yield Finding(change is None, told, change or "", answer.rank)
        depends = difference(plain, own) is not None
        told = "another output when this rank's own block changes"
        yield Finding(depends, told, "the same output", answer.rank)


def sends(
    forward: Callable[[SplitEvidence], Sequence[Call]],
    backward: Callable[[SplitEvidence], Sequence[Call]],
    ignore: Callable[[SplitEvidence], int] = lambda evidence: 0,
) -> Judge:
    """Each rank takes part in exactly these calls, forward and backward, and in no more in the steps of
    training; ignore: see `sends_in`.
    """
    first = sends_in("forward", forward, ignore), sends_in("backward", backward, ignore)
    return every(*first, _no_more_in_training("forward"), _no_more_in_training("backward"))


def _no_more_in_training(phase: str) -> Judge:
    """In no step of training there are more calls than in the first, or more bytes for as large an input.
    Fewer there may be: what is handed over asks for no gradient.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        larger = _largest_step(evidence)
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size == 1:
                continue
            first, name = calls_of(answer, phase), STEP_OF[phase]
            most = larger * sum(num_bytes for _, num_bytes in first)
            told = f"in {name}: no more than {calls_text(first)}, for as large an input"
            for seen in (calls_of(answer, each) for each in (*answer.earlier(name), name)):
                more = Counter(op for op, _ in seen) - Counter(op for op, _ in first)
                passed = not more and sum(num_bytes for _, num_bytes in seen) <= most
                yield Finding(passed, told, calls_text(seen), answer.rank)

    return judge


def _largest_step(evidence: SplitEvidence) -> float:
    """How many times as large as the first input that of a step of training is at most."""
    first = evidence.split.arguments[0]
    return max(evidence.bytes_of(f"{first}{step}") / evidence.bytes_of(first) for step in range(STEPS))


def sends_in(
    phase: str,
    calls: Callable[[SplitEvidence], Sequence[Call]],
    ignore: Callable[[SplitEvidence], int] = lambda evidence: 0,
) -> Judge:
    """In what is recorded as `phase`, each rank takes part in exactly these calls. A group of one may
    communicate or not.

    ignore: bytes up to which all_reduces do not count.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size > 1:
                yield calls_are(phase, calls(evidence), answer, ignore(evidence))

    return judge
