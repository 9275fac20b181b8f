"""A layer whose x goes several ways, as it does where blocks have a way past them: gradients add up. And one
whose parameters are not trained.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from labkit.checks.exercise import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same
from labkit.checks.shared.split import Split, SplitEvidence

X = "x of one way"
WAYS = "x of three ways"  # twice through the layer, and once past it
FROZEN = "x of one way, frozen"  # where no parameter asks for a gradient


def use_twice(rank: Rank, split: Split, part: nn.Module) -> None:
    """Answers: gradients of x where it goes one way, and three; and of each parameter, as "once NAME" and,
    added up over both, "thrice NAME".
    """
    once, often = (rank.inputs["x"].clone().requires_grad_() for _ in range(2))
    part.zero_grad()
    with rank.attempt("input-gradients"):
        split.use(part, [once]).square().sum().backward()
        for name, parameter in part.named_parameters():
            if parameter.grad is not None:
                rank.answer(f"once {name}", parameter.grad)
        ways = (split.use(part, [often]).square().sum() for _ in range(2))
        sum(ways, start=often.sum()).backward()
    rank.answer(X, once.grad)
    rank.answer(WAYS, often.grad)
    for name, parameter in part.named_parameters():
        rank.answer(f"thrice {name}", parameter.grad)


def use_frozen(rank: Rank, split: Split, part: nn.Module) -> None:
    """Answers the gradient of x once more, where no parameter asks for one."""
    x = rank.inputs["x"].clone().requires_grad_()
    part.requires_grad_(False)
    with rank.attempt("input-gradients"):
        split.use(part, [x]).square().sum().backward()
    part.requires_grad_()
    rank.answer(FROZEN, x.grad)


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
    """The gradient of x does not depend on whether parameters are trained."""
    for answer in evidence.answers:
        if X in answer.tensors:  # or `adds_ways` says so
            told = "the gradient of x where no parameter is trained, as where all are"
            yield same(told, answer.tensors[X], answer, FROZEN)
