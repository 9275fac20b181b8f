"""What one rank of a pipeline is handed, and stages whose work takes a known time."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.record import Span, span
from labkit.torch_private import IMPORTED_BY_BACKWARD


@dataclass(frozen=True)
class TiedWeight:
    """A weight that the first and the last stage share: this rank's copy, and the group of both ranks."""

    parameter: nn.Parameter
    group: dist.ProcessGroup


def _nothing(stage: int) -> None:
    """Nobody waits for the gradients of single stages."""


@dataclass(frozen=True)
class PipelinePart:
    """One rank's part of a model that is cut into stages 0 .. num_stages-1, and one batch for it.

    stages: this rank's stages by number. Stage s is on rank s modulo the number of ranks.
    micro_batches: (input, target) of each; their sizes may differ. Every rank is handed them and may count
        their samples, but only the first stage may look at what is in the inputs and only the last at what
        is in the targets.
    loss_fn: (output of the last stage, target) -> mean loss over the samples of that micro-batch.
    empty_input: (stage, micro-batch) -> a tensor without content, of the shape and dtype of what enters that
        stage; the gradient that comes back has the same shape.
    tied: where this rank has one of two copies of a weight; None where it has none, or both in one.
    gradients_ready: to be called with a stage's number right after that stage's last backward. Data
        parallelism averages the stage's gradients here, while other stages still work.
    """

    stages: Mapping[int, nn.Module]
    num_stages: int
    micro_batches: Sequence[tuple[Tensor, Tensor]]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    empty_input: Callable[[int, int], Tensor]
    tied: TiedWeight | None = None
    gradients_ready: Callable[[int], None] = _nothing


class TimedStage(nn.Module):
    """A stage whose forward and backward take at least a given time, and are drawn in the job's timeline.

    A sleep stands for a kernel: it keeps nobody's processor busy, so that more stages than there are cores
    can work at once. Spans are named F0, F1, ... in the order of the forwards, and B0, B1, ... after them.
    """

    def __init__(self, module: nn.Module, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        # The first backward that is handed a gradient imports them, for half a second: better now than then.
        for name in IMPORTED_BY_BACKWARD:
            importlib.import_module(name)

        self.module = module
        self.forward_ms, self.backward_ms = forward_ms, backward_ms
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        """The module's output; [samples, ...] to [samples, ...]."""
        number, self.forwards = self.forwards, self.forwards + 1
        with span(f"F{number}", kind="forward"):
            ends = time.monotonic() + self.forward_ms / 1000
            out = self.module(x)
            sleep_until(ends)
        return _SlowBackward.apply(out, f"B{number}", self.backward_ms)


class _SlowBackward(torch.autograd.Function):
    """Passes values and gradients through; the backward takes its time first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, ms: float) -> Tensor:
        ctx.name, ctx.ms = name, ms
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        with span(ctx.name, kind="backward"):
            sleep_until(time.monotonic() + ctx.ms / 1000)
        return grads[0], None, None


def sleep_until(moment: float) -> None:
    """Sleep until `time.monotonic()` shows `moment`; return at once when it has passed."""
    time.sleep(max(0.0, moment - time.monotonic()))


class HasRecord(Protocol):
    """What measuring needs of a job."""

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""

    @property
    def timeline(self) -> Sequence[Span]:
        """What they did, in seconds since the job began."""


def work_spans(job: HasRecord) -> list[Span]:
    """The job's forwards and backwards, with times in seconds since the first of them began."""
    spans = [s for s in job.timeline if s.kind in ("forward", "backward")]
    zero = min((s.start for s in spans), default=0.0)
    return [Span(s.rank, s.name, s.kind, s.start - zero, s.end - zero) for s in spans]


def measured_bubble(job: HasRecord) -> float:
    """Idle time over all time, from the first forward's start to the last backward's end, on all ranks."""
    spans = work_spans(job)
    if not spans:
        raise ValueError("the job has no span of kind forward or backward; run TimedStage on its ranks")
    busy = sum(s.end - s.start for s in spans)
    return 1 - busy / (job.ranks * max(s.end for s in spans))
