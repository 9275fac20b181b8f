"""Stacks of equal layers, whose memory and calls are counted: what goes in, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence
from labkit.checks.lesson_08.net import snapshot, stack
from labkit.checks.shared.split import drawn

ROWS = 2  # of each rank's x: one for what goes before, one for what is measured


def stack_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x, [ranks, ROWS, width]: small, so that no tanh of a stack is near its ends."""
    return {"x": drawn(case, generator, case.ranks, ROWS, case.params["width"]) / 4}


@dataclass(frozen=True)
class StackEvidence(Evidence):
    """What a stack of equal layers gives in one process, with the weights that it starts from."""

    def output(self, rank: int) -> Tensor:
        """Of a rank's last row."""
        return stack(self.case, [])(self.inputs["x"][rank, -1:]).detach()

    @cached_property
    def start(self) -> dict[str, Tensor]:
        """The weights."""
        return snapshot(stack(self.case, []))

    def gradients(self, times: Sequence[int]) -> dict[str, Tensor]:
        """Of each weight, the sum over ranks; each of a rank's rows counts so many times."""
        net = stack(self.case, [])
        outs = [net(self.inputs["x"][:, n]).sum() * often for n, often in enumerate(times)]
        torch.stack(outs).sum().backward()
        return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in net.named_parameters()}
