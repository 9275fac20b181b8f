"""The memory a rank has while the student's executor runs a schedule, beside what that accounts for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.checks.rank import Rank
from labkit.checks.shared.held import allocated_now, settled
from labkit.pipeline import PipelinePart
from labkit.theory.schedule import Action

ROWS, MANY = 512, 32  # of a micro-batch; micro-batches: what is kept of them all is far more than a few
NARROWEST, ENDS = 32, 4  # numbers a row: in the last message, and in inputs and outputs of the whole model
FEW = 4  # messages there and back that names in the student's code, or what is to come next, may hold
REPEATS = 2  # the least of so many: what runs for the first time imports and caches
BYTES = 8


class Gauge:
    """Memory of this process beyond what a list of actions accounts for, at each forward and backward.

    enters, leaves: bytes of what a forward of the stage receives and sends, 0 where it does not.
    """

    def __init__(self, enters: int, leaves: int, weights: int) -> None:
        self.enters, self.leaves, self.weights = enters, leaves, weights
        self.forwards = self.backwards = 0
        self.most = 0
        self.before = settled()

    def look(self) -> None:
        """Only where it seems too much is it waited for what the backend's own threads let go."""
        if self.most <= 0 and self._beyond(allocated_now()) > 0:
            self.most = max(self.most, self._beyond(settled()))

    def _beyond(self, now: int) -> int:
        return now - self.before - self._accounted()

    def _accounted(self) -> int:
        """All may be posted or received whose backward is to come; what was sent may be there until the end,
        activations twice: in a list of outputs too.
        """
        to_come = (MANY - self.backwards + FEW) * (self.enters + self.leaves)
        sent = 2 * self.forwards * self.leaves + self.backwards * self.enters
        # a half of what was received, so that it is plain that something is kept
        return to_come + sent + self.forwards * self.enters // 2 + 2 * self.weights


class GaugedStage(nn.Module):
    """A linear layer at whose forwards and backwards a gauge is looked at."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.linear = nn.Linear(enters, leaves, bias=False, dtype=torch.float64)
        self.linear.weight.grad = torch.zeros_like(self.linear.weight)
        self.gauge: Gauge | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[rows, enters] -> [rows, leaves]"""
        assert self.gauge is not None
        self.gauge.forwards += 1
        self.gauge.look()
        out: Tensor = self.linear(x)
        out.register_hook(self._back)
        return out

    def _back(self, grad: Tensor) -> None:
        assert self.gauge is not None
        self.gauge.look()
        self.gauge.backwards += 1


def memory_beyond(rank: Rank) -> int:
    """Bytes that a rank with one stage had in a run, at the worst of moments, beyond what the list has it
    keep. Forwards come first, so that even sends that block come to an end.
    """
    return min(_beyond(rank) for _ in range(REPEATS))


def _beyond(rank: Rank) -> int:
    number, last = rank.rank, rank.world_size - 1
    widths = [ENDS, *(NARROWEST * 2 ** (last - s) for s in range(1, last + 1)), ENDS]
    stage = GaugedStage(widths[number], widths[number + 1])
    rows = [(torch.zeros(ROWS, ENDS, dtype=torch.float64), torch.ones(ROWS, ENDS)) for _ in range(MANY)]
    part = PipelinePart(
        {number: stage},
        last + 1,
        rows,
        lambda out, target: (out - target).square().mean(),
        lambda stage, _: torch.empty(ROWS, widths[stage], dtype=torch.float64),
    )
    actions = [Action("forward", number, i) for i in range(MANY)]
    actions += [Action("backward", number, i) for i in range(MANY)]
    enters, leaves = (BYTES * ROWS * width for width in widths[number : number + 2])
    weights = stage.linear.weight.numel() * BYTES
    stage.gauge = gauge = Gauge(enters * (number > 0), leaves * (number < last), weights)
    rank.student.run_schedule(part, actions, rank.group)
    return gauge.most
