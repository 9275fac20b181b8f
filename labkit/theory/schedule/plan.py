"""What each action of a schedule waits for, as arrays that a loop can run through quickly.

An action has a number: its kind, stage and micro-batch written as one integer. Only waits that can be felt
are kept: an action that stands behind what it needs in the same list needs no look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.theory.schedule.actions import LETTERS, Action, Schedule

KINDS = tuple(LETTERS)
_NUMBER_OF_KIND = {kind: number for number, kind in enumerate(KINDS)}
FORWARD, BACKWARD, INPUT_BACKWARD, WEIGHT_BACKWARD = range(4)
NOTHING = -1

Numbers = NDArray[np.int64]


class ScheduleError(ValueError):
    """A schedule that cannot be run; the message names the action, the stage and the micro-batch."""


@dataclass(frozen=True)
class Plan:
    """A schedule in numbers; each list holds one array a rank, with one element an action.

    numbers: the action's number. waits_for: the number of the action it waits for, or NOTHING.
    rank_of_stage: who owns each stage, NOTHING where no list mentions it.
    """

    num_stages: int
    num_micro_batches: int
    numbers: list[Numbers]
    kinds: list[Numbers]
    stages: list[Numbers]
    waits_for: list[Numbers]
    rank_of_stage: Numbers

    @property
    def size(self) -> int:
        """One more than the largest action number."""
        return len(KINDS) * self.num_stages * self.num_micro_batches

    def action(self, number: int) -> Action:
        """The action of that number."""
        rest, micro_batch = divmod(int(number), self.num_micro_batches)
        kind, stage = divmod(rest, self.num_stages)
        return Action(KINDS[kind], stage, micro_batch)  # type: ignore[arg-type]

    def owner(self, stage: int) -> int:
        """The rank that owns the stage; NOTHING beyond the ends of the pipeline."""
        return int(self.rank_of_stage[stage]) if 0 <= stage < self.num_stages else NOTHING


def make_plan(schedule: Schedule) -> Plan:
    """Read a schedule. ScheduleError if an action is malformed, twice there, or on a stage of two ranks.

    What is missing is not looked for here: it shows when somebody waits for it.
    """
    columns = [_columns(rank, actions) for rank, actions in enumerate(schedule)]
    num_stages = 1 + max((int(c[1].max()) for c in columns if c[1].size), default=NOTHING)
    num_micro_batches = 1 + max((int(c[2].max()) for c in columns if c[2].size), default=NOTHING)
    numbers = [(k * num_stages + s) * num_micro_batches + m for k, s, m in columns]
    kinds, stages = [c[0] for c in columns], [c[1] for c in columns]
    owners = _owners(stages, num_stages)
    plan = Plan(num_stages, num_micro_batches, numbers, kinds, stages, [], owners)
    plan.waits_for.extend(_waits(plan))
    return plan


def _columns(rank: int, actions: Sequence[Action]) -> tuple[Numbers, Numbers, Numbers]:
    """Kinds, stages and micro-batches of one rank's list."""
    try:
        names, stages, micro = zip(*actions, strict=True) if len(actions) else ((), (), ())
        columns = [list(map(_NUMBER_OF_KIND.__getitem__, names)), stages, micro]
        whole = {int}.issuperset(map(type, stages + micro)) and min(stages + micro, default=0) >= 0
    except (TypeError, ValueError, KeyError):
        whole = False
    if not whole:
        raise ScheduleError(f"rank {rank}: {_first_malformed(actions)}")
    kinds, stage_array, micro_array = (np.array(column, dtype=np.int64) for column in columns)
    return kinds, stage_array, micro_array


def _first_malformed(actions: Sequence[Action]) -> str:
    wanted = f"Action(kind, stage, micro_batch) with a kind of {', '.join(KINDS)} and numbers from 0"
    if not isinstance(actions, (list, tuple)):
        return f"expected a list of actions, found {type(actions).__name__}"
    for index, action in enumerate(actions):
        well_formed = isinstance(action, (tuple, list)) and len(action) == 3 and action[0] in KINDS
        if not well_formed or any(type(n) is not int or n < 0 for n in action[1:]):
            return f"expected {wanted}; found {action!r} at position {index}"
    return f"expected {wanted}"


def _owners(stages: list[Numbers], num_stages: int) -> Numbers:
    owners = np.full(num_stages, NOTHING)
    for rank, own in enumerate(stages):
        for stage in np.unique(own):
            if owners[stage] != NOTHING:
                both = f"rank {owners[stage]} and rank {rank}"
                raise ScheduleError(f"stage {stage} is in the lists of {both}; expected one owner")
            owners[stage] = rank
    return owners


def _waits(plan: Plan) -> Iterator[Numbers]:
    position = np.full(plan.size, NOTHING)  # where each action stands in its rank's list
    for rank, numbers in enumerate(plan.numbers):
        position[numbers] = here = np.arange(len(numbers))
        overwritten = position[numbers] != here
        if overwritten.any():
            twice = numbers[overwritten.argmax()]
            times = int((numbers == twice).sum())
            raise ScheduleError(f"rank {rank} does {plan.action(twice)} {times} times; expected once")
    split = _is_split(plan)
    for rank, numbers in enumerate(plan.numbers):
        first, second = _needs(plan, rank, split)
        here = np.arange(len(numbers))
        for needed in (first, second):  # behind what it needs in its own list: nothing to wait for
            asked = needed != NOTHING
            own = asked & (_owner_of(plan, needed) == rank)
            done = own & (position[needed] != NOTHING) & (position[needed] < here)
            needed[done] = NOTHING
        yield np.where(second != NOTHING, second, first)


def _needs(plan: Plan, rank: int, is_split: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """For each action of a rank: what it needs from another stage, and what it needs from its own."""
    kinds, stages, numbers = plan.kinds[rank], plan.stages[rank], plan.numbers[rank]
    m, per_kind = plan.num_micro_batches, plan.num_stages * plan.num_micro_batches
    micro = numbers % m if m else numbers
    other, own = np.full(len(numbers), NOTHING), np.full(len(numbers), NOTHING)
    forward = (kinds == FORWARD) & (stages > 0)
    other[forward] = numbers[forward] - m
    backward = (kinds == BACKWARD) | (kinds == INPUT_BACKWARD)
    inner = backward & (stages < plan.num_stages - 1)
    split = is_split[np.minimum(stages + 1, plan.num_stages - 1)]  # its gradient comes from I, not B
    next_kind = np.where(split, INPUT_BACKWARD, BACKWARD)
    other[inner] = (next_kind * per_kind + (stages + 1) * m + micro)[inner]
    own[backward] = (FORWARD * per_kind + stages * m + micro)[backward]
    weight = kinds == WEIGHT_BACKWARD
    own[weight] = (INPUT_BACKWARD * per_kind + stages * m + micro)[weight]
    return other, own


def _is_split(plan: Plan) -> NDArray[np.bool_]:
    """For each stage, whether its backward is in two halves."""
    split = np.zeros(plan.num_stages, dtype=bool)
    for kinds, stages in zip(plan.kinds, plan.stages, strict=True):
        split[stages[kinds == INPUT_BACKWARD]] = True
    return split


def _owner_of(plan: Plan, numbers: Numbers) -> Numbers:
    stages = (numbers // max(1, plan.num_micro_batches)) % max(1, plan.num_stages)
    return plan.rank_of_stage[stages]
