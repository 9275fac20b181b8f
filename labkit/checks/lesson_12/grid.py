"""Ranks in a grid: experts spread along one side of it, and copied along the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import groups_of, place_of


@dataclass(frozen=True)
class Seats:
    """The ranks that a rank has to do with. everyone: who trains one model together; spread: among whom a
    copy of the experts is spread; replicas: who has the same experts.
    """

    everyone: list[int]
    spread: list[int]
    replicas: list[int]


def grid_case(
    name: str, kind: str, copies: int, spread: int, seed: int, jobs: int = 1, **params: Any
) -> Case:
    """copies x spread ranks for each of `jobs` models (2 ranks each where there are several); neighbours
    share a copy of the experts. apart: they do not, and neighbours have the same experts.
    """
    size = copies * spread
    settings = {"copies": copies, "spread": spread, **params}
    if jobs > 1:  # ranks 0 and 3 together, 1 and 2
        settings["groups"] = [[i, jobs * size - 1 - i] for i in range(jobs)]
    return Case(name, jobs * size, settings, seed, kind=kind, own_parts=kind == "own-parts")


def seats_of(case: Case, rank: int) -> Seats:
    """Where a rank sits in the grid of its model."""
    place, apart = place_of(case, rank), case.params.get("apart", False)
    size = case.params["copies" if apart else "spread"]
    beside, across = _sides(place.members, place.position, size)
    return Seats(list(place.members), *((across, beside) if apart else (beside, across)))


def _sides(members: Sequence[int], position: int, size: int) -> tuple[list[int], list[int]]:
    """The `size` neighbours that a position is among, and those at the same place among others."""
    first = position - position % size
    return list(members[first : first + size]), list(members[position % size :: size])


@dataclass(frozen=True)
class Sides:
    """The process groups of a rank's seats."""

    everyone: dist.ProcessGroup
    spread: dist.ProcessGroup
    replicas: dist.ProcessGroup


def enter_grid(rank: Rank) -> Sides:
    """The groups that this rank is in. Every rank makes all of them, as torch asks."""
    made: dict[tuple[str, ...], dist.ProcessGroup] = {}
    sides = ("everyone", "spread", "replicas")
    for members in groups_of(rank.case):
        for side in sides:
            for other in members:
                ranks = getattr(seats_of(rank.case, other), side)
                key = (side, *map(str, ranks))
                if key not in made:
                    made[key] = dist.new_group(ranks)
    own = seats_of(rank.case, rank.rank)
    return Sides(*(made[(side, *map(str, getattr(own, side)))] for side in sides))


def enter_alone(rank: Rank) -> dist.ProcessGroup:
    """A group of this rank and no other. Every rank makes all of them, as torch asks."""
    return [dist.new_group([member]) for member in range(rank.world_size)][rank.rank]


def stays_in_job(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether nothing was sent to ranks that train another model."""
    everyone = set(seats_of(evidence.case, answer.rank).everyone)
    used = {rank for calls in answer.collectives.values() for c in calls for rank in c["group"]}
    return Finding(used <= everyone, f"calls among ranks {sorted(everyone)}", f"{sorted(used)}", answer.rank)
