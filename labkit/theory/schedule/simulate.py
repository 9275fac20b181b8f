"""How long a schedule takes, how much of that the ranks stand idle, and how much they hold meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.theory.schedule.actions import Action, Schedule
from labkit.theory.schedule.dry_run import ScheduleDeadlock, blocked_ranks
from labkit.theory.schedule.plan import WEIGHT_BACKWARD, Plan, make_plan

Times = NDArray[np.float64]
PerStage = float | Sequence[float]
"""One number for all stages, or one for each."""


@dataclass(frozen=True)
class Costs:
    """Seconds (or any unit of time) that things take.

    forward, backward: of one micro-batch on a stage.
    send: from the end of an action until its result is with the rank that needs it; the sender goes on
        meanwhile. Between two stages of the same rank it is 0.
    weight_backward: the part of `backward` that is the weights' gradients, where a schedule has it apart;
        half of it unless given.
    """

    forward: PerStage = 1.0
    backward: PerStage = 2.0
    send: PerStage = 0.0
    weight_backward: PerStage | None = None

    def table(self, num_stages: int) -> Times:
        """[kind, stage], in the order of plan.KINDS."""
        forward, backward = per_stage(self.forward, num_stages), per_stage(self.backward, num_stages)
        half = backward / 2 if self.weight_backward is None else per_stage(self.weight_backward, num_stages)
        if (half > backward).any():
            raise ValueError(
                f"weight_backward is a part of backward: expected no more than {self.backward!r}, "
                f"found {self.weight_backward!r}"
            )
        return np.stack([forward, backward, backward - half, half])


class Event(NamedTuple):
    """An action, when it started and when it ended."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A schedule that was played through. Times start at 0; starts and ends have one array a rank."""

    plan: Plan
    starts: list[Times]
    ends: list[Times]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max((float(ends[-1]) for ends in self.ends if ends.size), default=0.0)

    @cached_property
    def busy(self) -> list[float]:
        """Time each rank spends working."""
        return [float((e - s).sum()) for s, e in zip(self.starts, self.ends, strict=True)]

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time: (p-1)/(m+p-1) for equal stages (GPipe, section 2.3)."""
        total = self.makespan * len(self.busy)
        return 1 - sum(self.busy) / total if total else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over working time: (p-1)/m for equal stages (Narayanan SC21, section 2.2.1)."""
        work = sum(self.busy)
        return self.makespan * len(self.busy) / work - 1 if work else 0.0

    def idle_inside(self, rank: int) -> float:
        """Time the rank stands idle between its own first start and its own last end."""
        starts, ends = self.starts[rank], self.ends[rank]
        return float(ends[-1] - starts[0]) - self.busy[rank] if ends.size else 0.0

    def events(self) -> Iterator[Event]:
        """Everything that happened, rank by rank."""
        for rank, numbers in enumerate(self.plan.numbers):
            for number, start, end in zip(numbers, self.starts[rank], self.ends[rank], strict=True):
                yield Event(rank, self.plan.action(number), float(start), float(end))

    def in_flight(self, rank: int) -> list[tuple[float, int]]:
        """(time, how many) at each change: forwards begun whose backward has not ended.

        With interleaved stages each (stage, micro-batch) counts as one, and is 1/v of the rank's layers.
        """
        held, changes = 0, [(0.0, 0)]
        for at, is_forward in enumerate(self.plan.kinds[rank] == 0):
            if is_forward:
                held += 1
                changes.append((float(self.starts[rank][at]), held))
            elif self.plan.kinds[rank][at] != WEIGHT_BACKWARD:
                held -= 1
                changes.append((float(self.ends[rank][at]), held))
        return changes

    def peak_in_flight(self, rank: int) -> int:
        """The most that `in_flight` reaches."""
        return max(count for _, count in self.in_flight(rank))

    def peak_activation(self, rank: int, per_forward: PerStage, kept_for_weights: PerStage = 0.0) -> float:
        """The most activation memory the rank holds, in the unit of `per_forward`.

        per_forward: what one micro-batch keeps on a stage between its forward and its (input) backward.
        kept_for_weights: what stays of that until the weights' half of the backward.
        """
        full = per_stage(per_forward, self.plan.num_stages)
        rest = per_stage(kept_for_weights, self.plan.num_stages)
        change = np.stack([full, -full, rest - full, -rest])
        steps = change[self.plan.kinds[rank], self.plan.stages[rank]]
        return float(np.cumsum(steps).max(initial=0.0))


def simulate(schedule: Schedule, costs: Costs | None = None) -> Simulation:
    """Play a schedule through: each rank does its list in order, each action as soon as it has what it needs.

    Raises ScheduleError for a malformed schedule, ScheduleDeadlock for one that does not end.
    """
    costs, plan = costs or Costs(), make_plan(schedule)
    table = costs.table(plan.num_stages)
    sending = _sending(plan, per_stage(costs.send, plan.num_stages))
    durations = [table[k, s] for k, s in zip(plan.kinds, plan.stages, strict=True)]
    delays = [sending[k, s] for k, s in zip(plan.kinds, plan.stages, strict=True)]
    starts = [np.array(s) for s in _play(plan, durations, delays)]
    if any(len(done) < len(d) for done, d in zip(starts, durations, strict=True)):
        raise ScheduleDeadlock(blocked_ranks(plan, [len(done) for done in starts]))
    return Simulation(plan, starts, [s + d for s, d in zip(starts, durations, strict=True)])


def _play(plan: Plan, durations: list[Times], delays: list[Times]) -> list[list[float]]:
    """When every action starts, rank by rank; shorter than the lists where a rank is blocked for ever.

    Each rank is a generator that stops where it must wait; whoever makes what it waits for wakes it.
    """
    arrives: list[float | None] = [None] * plan.size
    waiter: list[Iterator[None] | None] = [None] * plan.size
    awake: list[Iterator[None]] = []

    def go(rank: int, started: list[float]) -> Iterator[None]:
        now = 0.0
        columns = (plan.waits_for[rank], plan.numbers[rank], durations[rank], delays[rank])
        for needed, number, takes, travels in zip(*(c.tolist() for c in columns), strict=True):
            if needed >= 0:
                there = arrives[needed]
                if there is None:
                    waiter[needed] = ranks[rank]
                    yield
                    there = arrives[needed]
                if there > now:
                    now = there
            started.append(now)
            now += takes
            arrives[number] = now + travels
            if waiter[number] is not None:
                awake.append(waiter[number])

    starts: list[list[float]] = [[] for _ in plan.numbers]
    ranks = [go(rank, started) for rank, started in enumerate(starts)]
    awake += ranks
    while awake:
        next(awake.pop(), None)
    return starts


def _sending(plan: Plan, send: Times) -> Times:
    """[kind, stage]: how long the result of such an action travels."""
    owner = plan.rank_of_stage
    leaves_up = np.append(owner[1:] != owner[:-1], False) if len(owner) else np.zeros(0, dtype=bool)
    leaves_down = np.insert(owner[1:] != owner[:-1], 0, False) if len(owner) else np.zeros(0, dtype=bool)
    down = send * leaves_down
    return np.stack([send * leaves_up, down, down, np.zeros_like(send)])


def per_stage(value: PerStage, num_stages: int) -> Times:
    """One number a stage. ValueError if there are more or fewer, or if one is negative or nan."""
    values = np.asarray(value, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != num_stages):
        raise ValueError(f"expected one number, or one for each of {num_stages} stages; found {value!r}")
    if not (values >= 0).all():  # nor nan
        raise ValueError(f"expected numbers from 0, found {value!r}")
    return np.broadcast_to(values, (num_stages,))
