"""Schedules to try an executor with, drawn by running whatever can run next and writing down the order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from labkit.theory.schedule import Action, Kind

Choose = Callable[[Sequence[Action]], Action | None]
"""Of the actions a rank could do now, the one it does; None to wait."""


def needs(action: Action, num_stages: int) -> set[Action]:
    """What must have been done before."""
    kind, stage, i = action
    if kind == "forward":
        return {Action("forward", stage - 1, i)} if stage else set()
    own = Action("forward", stage, i)
    return {own, Action("backward", stage + 1, i)} if stage + 1 < num_stages else {own}


def all_actions(num_stages: int, num_micro_batches: int) -> list[Action]:
    """Every stage's forward and backward of every micro-batch."""
    kinds: tuple[Kind, Kind] = ("forward", "backward")
    return [Action(k, s, i) for k in kinds for s in range(num_stages) for i in range(num_micro_batches)]


def random_lists(num_ranks: int, num_stages: int, num_micro_batches: int, seed: int) -> list[list[Action]]:
    """A valid schedule in no particular order: one action at a time, any that could be next."""
    chance = random.Random(seed)
    left = dict.fromkeys(all_actions(num_stages, num_micro_batches))
    lists: list[list[Action]] = [[] for _ in range(num_ranks)]
    while left:
        action = chance.choice([a for a in left if not needs(a, num_stages) & left.keys()])
        del left[action]
        lists[action.stage % num_ranks].append(action)
    return lists


def lists_by_choice(
    num_ranks: int, num_stages: int, num_micro_batches: int, chooses: Callable[[int, int], Choose]
) -> list[list[Action]]:
    """All ranks go in step; in each step each rank does what it chooses of what it could do. ValueError when
    all choose to wait.

    chooses: (rank, forwards without their backward so far) -> how that rank chooses.
    """
    left = dict.fromkeys(all_actions(num_stages, num_micro_batches))
    lists: list[list[Action]] = [[] for _ in range(num_ranks)]
    while left:
        before = len(left)
        possible = [a for a in left if not needs(a, num_stages) & left.keys()]
        for rank, done in enumerate(lists):
            held = sum(1 if a.kind == "forward" else -1 for a in done)
            chosen = chooses(rank, held)([a for a in possible if a.stage % num_ranks == rank])
            if chosen is not None:
                done.append(chosen)
                del left[chosen]
        if len(left) == before:
            raise ValueError(f"nobody chose any of {[str(a) for a in possible]}")
    return lists


def forwards_first(rank: int, held: int) -> Choose:
    """Any forward before any backward."""
    return lambda possible: max(possible, key=lambda a: (a.kind == "forward", -a.micro_batch), default=None)


def backwards_first(num_ranks: int) -> Callable[[int, int], Choose]:
    """A backward as soon as there is one, and no more micro-batches at once than stages from here on."""
    return lambda rank, held: _backward_or(may_go_on=held < num_ranks - rank)


def _backward_or(may_go_on: bool) -> Choose:
    def choose(possible: Sequence[Action]) -> Action | None:
        allowed = [a for a in possible if a.kind == "backward" or may_go_on]
        return max(allowed, key=lambda a: (a.kind == "backward", -a.micro_batch), default=None)

    return choose


def gpipe(num_stages: int, num_micro_batches: int) -> list[list[Action]]:
    """One stage a rank; even sends that block come to an end."""
    return lists_by_choice(num_stages, num_stages, num_micro_batches, forwards_first)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> list[list[Action]]:
    """One stage a rank; neighbours have messages for each other at the same time."""
    return lists_by_choice(num_stages, num_stages, num_micro_batches, backwards_first(num_stages))


def one_at_a_time(num_ranks: int, num_stages: int, num_micro_batches: int) -> list[list[Action]]:
    """Each micro-batch goes forward and back before the next one starts: even sends that block come to an
    end.
    """
    return some_at_a_time(num_ranks, num_stages, [[i] for i in range(num_micro_batches)])


def some_at_a_time(num_ranks: int, num_stages: int, groups: Sequence[Sequence[int]]) -> list[list[Action]]:
    """The micro-batches of a group go forward, one after the other, and back before the next group starts. An
    executor with a schedule of its own does another, and even sends that block come to an end.
    """
    lists: list[list[Action]] = [[] for _ in range(num_ranks)]
    for group in groups:
        there = [Action("forward", stage, i) for i in group for stage in range(num_stages)]
        back = [Action("backward", stage, i) for i in group for stage in reversed(range(num_stages))]
        for action in [*there, *back]:
            lists[action.stage % num_ranks].append(action)
    return lists


def most_held(actions: Sequence[Action]) -> int:
    """The most forwards that are without their backward at any point of a list."""
    held = most = 0
    for action in actions:
        held += 1 if action.kind == "forward" else -1
        most = max(most, held)
    return most
