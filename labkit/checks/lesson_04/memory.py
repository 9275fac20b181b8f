"""The memory a rank has while the student's executor runs a schedule, beside what that accounts for, and what
it still has afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.lesson_04.lists import one_at_a_time
from labkit.checks.rank import Rank
from labkit.checks.shared.held import allocated_now, settled
from labkit.pipeline import PipelinePart
from labkit.record.live import has_bytes
from labkit.record.threads import InAllThreads
from labkit.theory.schedule import Action
from labkit.torch_private import WatchingMode, storage_key, tree_iter

ROWS, WIDE = 512, 64  # of a message
MANY, SEVERAL = 64, 32  # micro-batches, and with several stages a rank: all of them are far more than a few
ENDS = 4  # numbers a row: in inputs and outputs of the whole model
CHUNKS = 2  # stages a rank where a rank has several
ALONE = 3  # stages of a rank that is alone
FEW = 4  # messages there and back that names in the student's code, or what is to come next, may hold
OPEN = 2  # times what a micro-batch brings: where it is received, and what the stage is given
PART = 8  # of all that was received, one part in so many, so that it is plain that something is kept
REPEATS = 2  # runs that are judged each, after a short one that imports and caches
SHORT = 2  # micro-batches of that one: what is kept by its actions is less than what a later one leaves
BYTES = 8
MESSAGE = BYTES * ROWS * WIDE
ListOf = Callable[[int], list[Action]]
"""How many micro-batches -> a rank's list for them."""


class Leaving(InAllThreads, WatchingMode):
    """What a rank makes for others, as long as it is there: a send may have it until the executor ends."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], dict[int, int]]] = {}

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count what is sent: it may be a copy of what a stage gave."""
        if func._schema.name == "c10d::send":
            for tensor in filter(has_bytes, tree_iter(inputs)):
                self.count(tensor)

    def count(self, tensor: Tensor) -> None:
        """Count this from now on, and no more of the memory it is in."""
        storage = tensor.untyped_storage()
        known = self._alive.get(storage_key(storage))
        if known is None or known[0]() is not storage:
            known = self._alive[storage_key(storage)] = weakref.ref(storage), {}
        known[1][tensor.data_ptr()] = tensor.nbytes

    @property
    def now(self) -> int:
        """Bytes of it that are alive at this moment."""
        entries = [(reference(), parts) for reference, parts in list(self._alive.values())]
        return sum(min(s.nbytes(), sum(parts.values())) for s, parts in entries if s is not None)


class Gauge:
    """Memory of this process beyond what a list of actions accounts for, at each forward and backward."""

    def __init__(self, stages: Sequence[GaugedStage], leaving: Leaving) -> None:
        self.stages, self.leaving = stages, leaving
        self.most = 0
        self.before = settled()

    def look(self) -> None:
        """Only where it seems too much is it waited for what the backend's own threads let go."""
        if self.most <= 0 and self._beyond(allocated_now()) > 0:
            self.most = max(self.most, self._beyond(settled()))

    def _beyond(self, now: int) -> int:
        return now - self.before - self.leaving.now - sum(stage.accounted() for stage in self.stages)


class GaugedStage(nn.Module):
    """A linear layer at whose forwards and backwards a gauge is looked at.

    enters, leaves: bytes of what a forward receives and sends, from or to this rank too; 0 where it does not.
    """

    def __init__(self, number: int, last: int, many: int) -> None:
        super().__init__()
        self.many = many
        before, after = width_at(number, last), width_at(number + 1, last)
        self.linear = nn.Linear(before, after, bias=False, dtype=torch.float64)
        self.linear.weight.grad = torch.zeros_like(self.linear.weight)
        self.enters = BYTES * ROWS * before * (number > 0)
        self.leaves = BYTES * ROWS * after * (number < last)
        self.forwards = self.backwards = 0
        self.gauge: Gauge | None = None
        self.by_mail = True

    def accounted(self) -> int:
        """All may be posted or received whose backward is to come."""
        to_come = OPEN * (self.many - self.backwards) + FEW
        weights = self.linear.weight.numel() * BYTES
        return to_come * (self.enters + self.leaves) + self.forwards * self.enters // PART + 2 * weights

    def forward(self, x: Tensor) -> Tensor:
        """[rows, enters] -> [rows, leaves]"""
        assert self.gauge is not None
        self.forwards += 1
        self.gauge.look()
        out: Tensor = self.linear(x)
        out.register_hook(self._back)
        if self.by_mail:
            self.gauge.leaving.count(out)
            if x.requires_grad:
                x.register_hook(self.gauge.leaving.count)
        return out

    def _back(self, grad: Tensor) -> None:
        assert self.gauge is not None
        self.gauge.look()
        self.backwards += 1


def width_at(stage: int, last: int) -> int:
    """Numbers a row of what enters a stage, or leaves the one before."""
    return WIDE if 0 < stage <= last else ENDS


@dataclass(frozen=True)
class Beyond:
    """Bytes that a rank had beyond what its lists have it keep: in runs, at the worst of moments, and after
    them.
    """

    during: int
    after: int


def memory_beyond(rank: Rank) -> Beyond:
    """Of runs with one stage a rank, and with several. The lists are such that even sends that block come to
    an end.
    """
    ranks = rank.world_size
    if ranks == 1:
        return _worst([*_runs(rank, ALONE, lambda many: one_at_a_time(1, ALONE, many)[0], SEVERAL)])

    def forwards_first(many: int) -> list[Action]:
        return [Action(kind, rank.rank, i) for kind in ("forward", "backward") for i in range(many)]

    def in_chunks(many: int) -> list[Action]:
        return one_at_a_time(ranks, CHUNKS * ranks, many)[rank.rank]

    one_stage = _runs(rank, ranks, forwards_first, MANY)
    return _worst([*one_stage, *_runs(rank, CHUNKS * ranks, in_chunks, SEVERAL)])


def _worst(found: Sequence[Beyond]) -> Beyond:
    return Beyond(max(each.during for each in found), max(each.after for each in found))


def _runs(rank: Rank, num_stages: int, list_of: ListOf, many: int) -> list[Beyond]:
    return [_run(rank, num_stages, list_of(count), count) for count in (SHORT, *[many] * REPEATS)][1:]


def _run(rank: Rank, num_stages: int, actions: list[Action], many: int) -> Beyond:
    last = num_stages - 1
    stages = {s: GaugedStage(s, last, many) for s in range(rank.rank, num_stages, rank.world_size)}
    part = PipelinePart(
        stages,
        num_stages,
        [(torch.zeros(ROWS, ENDS, dtype=torch.float64), torch.ones(ROWS, ENDS)) for _ in range(many)],
        lambda out, target: (out - target).square().mean(),
        lambda stage, _: torch.empty(ROWS, width_at(stage, last), dtype=torch.float64),
    )
    with Leaving() as leaving:
        gauge = Gauge(list(stages.values()), leaving)
        for stage in stages.values():
            stage.gauge, stage.by_mail = gauge, rank.world_size > 1
        rank.student.run_schedule(part, actions, rank.group)
    return Beyond(gauge.most, settled() - gauge.before - 2 * FEW * MESSAGE)
