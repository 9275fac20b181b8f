"""Gradients that are not finite on some ranks: their mean is not either, and every rank has it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.exercise import Finding
from labkit.checks.lesson_03.net import WORDS, ReplicaEvidence, net_case, net_of, own_loss
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same

FIRST = "grad 0"  # of the only step


def not_finite_case(name: str, ranks: int, seed: int, spoiled: list[list[Any]], **params: Any) -> Case:
    """Replicas of the small net. spoiled: [rank, name, value], by which the first number of a gradient is
    replaced on a rank: "nan", "inf" or "-inf".
    """
    return net_case(name, "not-finite", ranks, seed, spoiled=spoiled, **params)


def average_spoiled(rank: Rank) -> None:
    """Average the gradients of one step. Answers: grad 0.NAME, zero where it is not finite. Fact: not finite,
    by name what is not in it.
    """
    net = net_of(rank.case, rank.inputs)
    own_loss(rank, net, 0).backward()
    for spoiled_rank, name, value in rank.params["spoiled"]:
        gradient = net.get_parameter(name).grad
        if spoiled_rank == rank.rank and gradient is not None:
            gradient.view(-1)[0] = float(value)
    rank.student.average_gradients(net, rank.group)
    found: dict[str, list[str]] = {}
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            found[name] = _not_finite(parameter.grad)
            rank.answer(f"{FIRST}.{name}", parameter.grad.nan_to_num(0.0, 0.0, 0.0))
    rank.fact("not finite", {name: values for name, values in found.items() if values})


def _not_finite(gradient: Tensor) -> list[str]:
    return [str(number) for number in gradient.flatten().tolist() if not math.isfinite(number)]


def means_are_not_finite_either(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """A mean is nan or infinite where a rank's number is, and elsewhere what it would be without."""
    sums: defaultdict[str, float] = defaultdict(float)
    for _, name, value in evidence.case.params["spoiled"]:
        sums[name] += float(value)
    wanted = {name: [str(value)] for name, value in sums.items()}
    for answer in evidence.answers:
        seen = answer.facts["not finite"]
        told = f"means that are not finite where a rank's gradient is not: {wanted}"
        yield Finding(seen == wanted, told, f"{seen or 'none'}", answer.rank)
        for key, tensor in evidence.reference(answer).items():
            kind, _, name = key.partition(".")
            if kind == FIRST:
                expected = tensor.clone()
                if name in sums:
                    expected.view(-1)[0] = 0.0
                yield same(WORDS[FIRST].format(name), expected, answer, key)
