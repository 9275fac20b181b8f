"""Gradients that add up over two backward passes, as where one step takes several batches: whoever sums over
the ranks what a parameter's gradient holds, rather than what is added to it, sums the first pass again.
"""

from __future__ import annotations

from collections.abc import Iterator

from labkit.checks.exercise import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same
from labkit.checks.shared.split import Split, SplitEvidence, build_and_use, under


def use_twice(rank: Rank, split: Split) -> None:
    """As `use_part`, and then forward and backward twice, with what was first handed over; gradients are
    reset before the first pass only. Answers: once.NAME and twice.NAME, gradients after either.
    """
    part = build_and_use(rank, split)
    part.zero_grad()
    with rank.attempt("sequence-parallel"):
        for passes in ("once", "twice"):
            split.use(part, [rank.inputs[name].clone() for name in split.arguments]).square().sum().backward()
            for name, parameter in part.named_parameters():
                rank.answer(f"{passes}.{name}", parameter.grad)


def adds_to_gradients(evidence: SplitEvidence) -> Iterator[Finding]:
    """A parameter's gradient after both passes is twice that after the first."""
    for answer in evidence.answers:
        for name, once in under("once.", answer.tensors).items():
            told = f"gradient of {name} after two backward passes of the same: twice that of one"
            yield same(told, 2 * once, answer, f"twice.{name}")
