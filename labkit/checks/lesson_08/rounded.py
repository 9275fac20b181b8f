"""Steps of stage 1 over 16-bit weights, and what becomes of the gradients that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.lesson_08.masters import BF16_STEPS, PARTS, rates
from labkit.checks.rank import Rank

FROZEN_NUMBERS = 7


def train_in_bf16(rank: Rank) -> None:
    """Many steps whose changes are too small for the weights. Answers: "weights 0.w"; recording, of each
    step: "step"; fact: changed, the parts whose own gradients a step has changed.
    """
    parts = [nn.Parameter(part.clone()) for part in rank.inputs["w"].chunk(PARTS)]
    optimizer = rank.student.ShardedOptimizer(
        _handed(rank.case, parts), torch.optim.SGD, rank.group, lr=rank.params["lr"]
    )
    named, changed = {f"part {n}": part for n, part in enumerate(parts)}, set[str]()
    for step in range(BF16_STEPS):
        slopes = rank.inputs["slope"][step % 2, 0].chunk(PARTS)
        for part, slope in zip(parts, slopes, strict=True):
            (part * slope).sum().backward()
        before = gradients_of(named)
        with rank.recording("step"):
            optimizer.step()
        changed.update(changed_since(before, named))
        optimizer.zero_grad()
    rank.answer("weights 0.w", torch.cat([part.detach() for part in parts]))
    rank.fact("changed", sorted(changed))


def _handed(case: Case, parts: Sequence[nn.Parameter]) -> Sequence[Any]:
    """The parts, where the case has groups those of the same rate in one: the first and the last learn at
    another one than the part between them. frozen: where a frozen parameter in fp32 is among them, "first" or
    "last", or "alone" in a group of its own in front.
    """
    where = case.params.get("frozen")
    frozen = nn.Parameter(torch.ones(FROZEN_NUMBERS, device=parts[0].device), requires_grad=False)
    ends = [frozen] if where == "first" else [], [frozen] if where == "last" else []
    if not case.params.get("groups_of_rates"):
        return [*ends[0], *parts, *ends[1]]
    groups = [
        {"params": [*ends[0], parts[0], *parts[2:]]},
        {"params": [parts[1], *ends[1]], "lr": rates(case).chunk(PARTS)[1][0].item()},
    ]
    return [{"params": [frozen]}, *groups] if where == "alone" else groups


def gradients_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None]:
    """Copies, by name."""
    return {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()}


def changed_since(before: Mapping[str, Tensor | None], parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """The names of those whose gradients are others now."""
    return [name for name, p in parameters.items() if not _alike(before[name], p.grad)]


def _alike(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether a gradient is what it was; where there was none, zeros tell the same."""
    if before is None:
        return after is None or not after.any()
    return after is not None and torch.equal(before, after)
