"""What `09.rank-grid` must refuse: orders, ranks and coordinates of other grids, and grids of other jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused
from labkit.torch_private_distributed import groups_made

RANKS = 2  # of a case
Sizes = Mapping[str, int]
Asked = tuple[str, Sequence[Any], Sequence[object]]
"""A function, its arguments, and what its refusal must name."""


def refused_case(name: str, asked: Sequence[Asked], seed: int) -> Case:
    """Calls that must be refused, each by itself, on two ranks."""
    calls = [[call, list(arguments), list(names)] for call, arguments, names in asked]
    return Case(name, RANKS, {"calls": calls}, seed, kind="refused")


def other_grids(*grids: Sizes) -> list[Asked]:
    """Groups of grids that have more or fewer ranks than the job."""
    return [("build_groups", [grid, [*grid]], [math.prod(grid.values()), RANKS]) for grid in grids]


def ranks_outside(sizes: Sizes, order: Sequence[str], *ranks: int) -> list[Asked]:
    """Ranks that the grid has not."""
    return [("rank_to_coordinates", [rank, sizes, order], []) for rank in ranks]


def other_orders(order: Sequence[str]) -> list[list[str]]:
    """What is no order of these axes: one of them is missing, or another, or one twice, is in its place or
    beside all.
    """
    outer, first = list(order[:-1]), order[0]
    return [outer, [*outer, "ep"], [*outer, first], ["ep", *order], [*order, first]]


def orders_refused(call: str, sizes: Sizes, orders: Sequence[Sequence[str]], *before: int) -> list[Asked]:
    """A function, asked with each of these orders; before: what it is handed before the sizes."""
    return [(call, [*before, sizes, order], []) for order in orders]


def places_outside(sizes: Sizes, order: Sequence[str], draw: Random | None = None) -> list[Asked]:
    """Along each axis a coordinate too large, and one below zero; those of the other axes are in the grid.
    What they add up to may be a rank that there is.
    """
    asked: list[Asked] = []
    for axis, size in sizes.items():
        inside = {other: draw.randrange(n) if draw else 0 for other, n in sizes.items()}
        for outside in (size + (draw.choice([0, 1]) if draw else 0), -(draw.randint(1, size) if draw else 1)):
            asked.append(("coordinates_to_rank", [inside | {axis: outside}, sizes, order], [axis]))
    return asked


def refuse(rank: Rank) -> None:
    """Facts: refusal NUMBER, of each call; made, how many groups this rank has in the end that it had not."""
    before = groups_made()
    for number, (call, arguments, _) in enumerate(rank.params["calls"]):
        job = [rank.group] if call == "build_groups" else []
        with rank.expect_error(f"refusal {number}"):
            getattr(rank.student, call)(*arguments, *job)
    rank.fact("made", len(groups_made() - before))


def all_refused(evidence: Evidence) -> Iterator[Finding]:
    """Each call is refused on each rank, by a ValueError that names what it must."""
    for answer in evidence.answers:
        for number, (call, arguments, names) in enumerate(evidence.case.params["calls"]):
            found = refused(f"refusal {number}", ["ValueError"], answer, names)
            asked = f"{call}({', '.join(map(str, arguments))}{', group' if call == 'build_groups' else ''})"
            yield Finding(found.passed, f"{found.expected} from {asked}", found.seen, answer.rank)


def nothing_made(evidence: Evidence) -> Iterator[Finding]:
    """No group was made before a grid was refused."""
    for answer in evidence.answers:
        made = answer.facts["made"]
        yield Finding(made == 0, "refused before a group is made", f"{made} made", answer.rank)
