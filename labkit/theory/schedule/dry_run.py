"""Runs a schedule without costs: can every action be reached, and who waits for what if not?"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from labkit.theory.schedule.actions import Action, Schedule
from labkit.theory.schedule.plan import NOTHING, Plan, ScheduleError, make_plan


@dataclass(frozen=True)
class Blocked:
    """A rank that cannot go on: the action it stands at, what that waits for, and why it never comes."""

    rank: int
    action: Action
    waits_for: Action
    why: str

    def __str__(self) -> str:
        return f"rank {self.rank} is blocked at {self.action}: it waits for {self.waits_for}, {self.why}"


class ScheduleDeadlock(ScheduleError):
    """Some ranks wait for ever. `blocked` has one entry for each."""

    def __init__(self, blocked: list[Blocked]) -> None:
        super().__init__("the schedule deadlocks:\n" + "\n".join(f"  {b}" for b in blocked))
        self.blocked = blocked


def dry_run(schedule: Schedule) -> list[Blocked]:
    """Who is blocked, and at what, when every rank has gone as far as it can; [] when all actions are done.

    Sends never block here: a message waits in the mail until it is wanted.
    """
    plan = make_plan(schedule)
    return blocked_ranks(plan, furthest_positions(plan))


def check_schedule(schedule: Schedule, num_stages: int, num_micro_batches: int) -> None:
    """ScheduleError unless each stage does each micro-batch once, forward and back, and nobody is blocked."""
    plan = make_plan(schedule)
    done = dict.fromkeys(plan.action(n) for numbers in plan.numbers for n in numbers)
    for action in done:
        if action.stage >= num_stages:
            raise ScheduleError(f"{action}: there is no stage {action.stage}, the last is {num_stages - 1}")
        if action.micro_batch >= num_micro_batches:
            last = num_micro_batches - 1
            raise ScheduleError(f"{action}: there is no micro-batch {action.micro_batch}, the last is {last}")
    for stage in range(num_stages):
        for micro_batch in range(num_micro_batches):
            missing = _missing(done, stage, micro_batch)
            if missing:
                raise ScheduleError(f"{missing} is missing: no rank's list has it")
    blocked = blocked_ranks(plan, furthest_positions(plan))
    if blocked:
        raise ScheduleDeadlock(blocked)


def furthest_positions(plan: Plan) -> list[int]:
    """How many actions of its list each rank can do."""
    done = bytearray(plan.size)
    waiting: dict[int, list[int]] = {}
    position = [0] * len(plan.numbers)
    lists = [(n.tolist(), w.tolist()) for n, w in zip(plan.numbers, plan.waits_for, strict=True)]
    ready = list(range(len(lists)))
    while ready:
        rank = ready.pop()
        numbers, waits = lists[rank]
        while position[rank] < len(numbers):
            needed = waits[position[rank]]
            if needed != NOTHING and not done[needed]:
                waiting.setdefault(needed, []).append(rank)
                break
            number = numbers[position[rank]]
            done[number] = 1
            position[rank] += 1
            ready += waiting.pop(number, ())
    return position


def blocked_ranks(plan: Plan, positions: list[int]) -> list[Blocked]:
    """The ranks that stopped before the end of their lists, and what each waits for."""
    stopped = {r: at for r, at in enumerate(positions) if at < len(plan.numbers[r])}
    blocked = []
    for rank, at in stopped.items():
        needed = int(plan.waits_for[rank][at])
        waits_for = plan.action(needed)
        why = _why(plan, rank, needed, stopped)
        blocked.append(Blocked(rank, plan.action(int(plan.numbers[rank][at])), waits_for, why))
    return blocked


def _why(plan: Plan, rank: int, needed: int, stopped: dict[int, int]) -> str:
    """Why the needed action never happens."""
    owner = plan.owner(plan.action(needed).stage)
    if owner == NOTHING or needed not in plan.numbers[owner]:
        return "which is in no rank's list"
    if owner == rank:
        return "which stands further down in its own list"
    at = plan.action(int(plan.numbers[owner][stopped[owner]]))
    if at == plan.action(needed):
        return f"at which rank {owner} is blocked itself"
    return f"which rank {owner} would do after {at}, where it is blocked itself"


def _missing(done: Container[Action], stage: int, micro_batch: int) -> Action | None:
    forward = Action("forward", stage, micro_batch)
    if forward not in done:
        return forward
    first, second = (Action(k, stage, micro_batch) for k in ("input_backward", "weight_backward"))
    if first in done or second in done:
        return next((half for half in (first, second) if half not in done), None)
    backward = Action("backward", stage, micro_batch)
    return None if backward in done else backward
