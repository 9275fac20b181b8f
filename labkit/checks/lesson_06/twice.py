"""A layer as it stands inside a model: its x is no leaf, and goes several ways, as it does where blocks have
a way past them, so that gradients add up. And one whose parameters are not trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from labkit.checks.exercise import Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, same
from labkit.checks.shared.calls_inside import INSIDE, calls_if_recorded, no_more_calls
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import Split, SplitEvidence, loaded, under
from labkit.checks.shared.worked import Worked

X = "x of one way"
WAYS = "x of three ways"  # twice through the layer, and once past it
FROZEN = "x of one way, frozen"  # where no parameter asks for a gradient
MADE = "x made"  # what another operation has made of x, after the layer was given it
MORE_IN_A_STEP = 1.5  # times a rank's share of a step's products: who computes one again in backward has 1.33
ONE_WAY, THREE_WAYS, UNTRAINED = INSIDE, "three ways", "nothing trained"  # as calls are recorded and told
TIMES = {ONE_WAY: 1, THREE_WAYS: 2, UNTRAINED: 1}  # through the layer
Calls = Callable[[SplitEvidence], Sequence[Call]]


def use_twice(rank: Rank, split: Split, part: nn.Module) -> dict[str, int]:
    """Answers: gradients of x where it goes one way, and three; and of each parameter, as "once NAME" and,
    added up over both, "thrice NAME"; what the layer was given. Recordings: forward and backward of each.
    Returns operations of matrix products, of each.
    """
    once, often = (rank.inputs["x"].clone().requires_grad_() for _ in range(2))
    part.zero_grad()
    with rank.attempt("input-gradients"):
        made = as_inside(once)
        with Worked() as of_one:
            with rank.recording(f"forward, {ONE_WAY}"):
                out = split.use(part, [made])
            with rank.recording(f"backward, {ONE_WAY}"):
                out.square().sum().backward()
        rank.answer(MADE, made)
        for name, parameter in part.named_parameters():
            if parameter.grad is not None:
                rank.answer(f"once {name}", parameter.grad)
        made = as_inside(often)
        with Worked() as of_three:
            with rank.recording(f"forward, {THREE_WAYS}"):
                ways = [split.use(part, [made]).square().sum() for _ in range(2)]
            with rank.recording(f"backward, {THREE_WAYS}"):
                sum(ways, start=made.sum()).backward()
    rank.answer(X, once.grad)
    rank.answer(WAYS, often.grad)
    for name, parameter in part.named_parameters():
        rank.answer(f"thrice {name}", parameter.grad)
    return {ONE_WAY: of_one.products, THREE_WAYS: of_three.products}


def use_frozen(rank: Rank, split: Split, part: nn.Module) -> dict[str, int]:
    """Answers the gradient of x once more, where no parameter asks for one. Recordings: forward and backward.
    Returns operations of matrix products.
    """
    x = rank.inputs["x"].clone().requires_grad_()
    part.requires_grad_(False)
    with rank.attempt("input-gradients"), Worked() as worked:
        with rank.recording(f"forward, {UNTRAINED}"):
            out = split.use(part, [x])
        with rank.recording(f"backward, {UNTRAINED}"):
            out.square().sum().backward()
    part.requires_grad_()
    rank.answer(FROZEN, x.grad)
    return {UNTRAINED: worked.products}


def adds_ways(evidence: SplitEvidence) -> Iterator[Finding]:
    """The gradient of an x that goes twice through the layer and once past it."""
    for answer in evidence.answers:
        once = answer.tensors.get(X)
        if once is None:
            yield Finding(False, "a gradient of x", "none", answer.rank)
            continue
        told = "the gradient of an x that goes twice through the layer and once past it"
        yield same(told, 2 * once + 1, answer, WAYS)


def adds_to_gradients(evidence: SplitEvidence) -> Iterator[Finding]:
    """What a parameter's gradient holds after a second backward that gives twice as much."""
    for answer in evidence.answers:
        for name in [n.removeprefix("once ") for n in answer.tensors if n.startswith("once ")]:
            told = f"the gradient of {name}, to which another backward adds twice as much"
            yield same(told, 3 * answer.tensors[f"once {name}"], answer, f"thrice {name}")


def same_when_frozen(evidence: SplitEvidence) -> Iterator[Finding]:
    """The gradient of x does not depend on whether parameters are trained, nor on whether x is a leaf."""
    for answer in evidence.answers:
        if X in answer.tensors:  # or `adds_ways` says so
            told = "the gradient of x where no parameter is trained, as where all are"
            yield same(told, answer.tensors[X], answer, FROZEN)


def sends_inside(forward: Calls, backward: Calls) -> Judge:
    """Inside a model each rank takes part in exactly these calls; in two forwards in at most twice as many,
    where nothing is trained in no more. A group of one may communicate or not.
    """

    def judge(evidence: SplitEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size == 1:
                continue
            for phase, calls in {"forward": forward(evidence), "backward": backward(evidence)}.items():
                yield from calls_if_recorded(f"{phase}, {ONE_WAY}", calls, answer)
                for way, times in TIMES.items():
                    yield no_more_calls(f"{phase}, {way}", [*calls] * times, answer)

    return judge


def steps_its_share(evidence: SplitEvidence) -> Iterator[Finding]:
    """In forward and backward together a rank multiplies about a t-th of what the whole layer does. Not told
    of a vector, whose outer products are counted or not by how they are written.
    """
    if evidence.inputs["x"][0].dim() == 1:
        return
    whole = _products_of_a_step(evidence)
    for answer in evidence.answers:
        size = place_of(evidence.case, answer.rank).size
        for way, times in TIMES.items():
            share, seen = times * whole / size, answer.facts["step_products"][way]
            told = f"about {share:,.0f} operations of matrix products in a step, {way}, 1/{size} of all"
            yield Finding(seen <= MORE_IN_A_STEP * share, told, f"{seen:,}", answer.rank)


def _products_of_a_step(evidence: SplitEvidence) -> int:
    full = loaded(evidence.split.plain(evidence.case), under("full.", evidence.inputs))
    x: Tensor = evidence.inputs["x"][0].clone().requires_grad_()
    with Worked() as worked:
        evidence.split.use(full, [x]).square().sum().backward()
    return worked.products
