"""The plain program of the lesson on the fixed machine, in any case: it sends all when it is there."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.lesson_10.small_gpt import model_of
from labkit.checks.shared.beside import nbytes
from labkit.record.journal import Arithmetic
from labkit.record.replay import Act, replay


class _Plain(Arithmetic):
    """What each rank of a group does: all have as many rows. `send` takes the place of an all_reduce."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._members = tuple(range(ranks))
        self._calls = 0

    def send(self, tensor: Tensor) -> None:
        """Started, and waited for at once."""
        start = Act(
            "start", num_bytes=nbytes(tensor), number=self._calls, op="all_reduce", members=self._members
        )
        self.acts += [start, Act("wait", number=self._calls)]
        self._calls += 1


def plain_seconds(case: Case, ranks: int) -> float:
    """Of a step of the plain program, by a group of so many ranks, on the case's model and batches."""
    model, batches = model_of(case), case.params["batches"]
    parameters = list(model.parameters())
    with _Plain(ranks) as plain:
        for micro_batches, rows in batches:
            mean = torch.zeros((), dtype=parameters[0].dtype)
            totals = [torch.zeros_like(p) for p in parameters]
            for _ in range(micro_batches):
                mine = torch.zeros(rows // ranks, case.params["sequence"] + 1, dtype=torch.long)
                loss = model.loss(mine[:, :-1], mine[:, 1:]) / (ranks * micro_batches)
                for total, gradient in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
                    plain.send(gradient)
                    total += gradient
                loss = loss.detach()
                plain.send(loss)
                mean += loss
            with torch.no_grad():
                for p, total in zip(parameters, totals, strict=True):
                    p.sub_(case.params["learning_rate"] * total)
    record = replay([plain.acts] * ranks)
    return max(event.end or 0.0 for event in record.timeline) / len(batches)
