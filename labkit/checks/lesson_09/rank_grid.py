"""What `09.rank-grid` must show: coordinates of every rank, and a group along every axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_09.given import HIDES, TORCHS_GRIDS
from labkit.checks.lesson_09.refused_grids import (
    all_refused,
    nothing_made,
    orders_refused,
    other_grids,
    other_orders,
    places_outside,
    ranks_outside,
    refuse,
    refused_case,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory.grid import placement  # an empty file where this lesson is graded: judges alone call it

GRID_ID = "09.rank-grid"
Sizes = Mapping[str, int]


def places_case(name: str, grids: Sequence[tuple[Sizes, Sequence[str]]], seed: int, kind: str) -> Case:
    """Every rank of some grids, (sizes, order) each."""
    return Case(name, 1, {"grids": [[dict(s), list(o)] for s, o in grids]}, seed, kind=kind)


def groups_case(
    name: str, sizes: Sizes, order: Sequence[str], seed: int, kind: str = "groups", **params: Any
) -> Case:
    """A job of as many ranks as the grid has. before: members of groups that there are before. then: sizes
    and order of a grid that is built after it. own_names: each rank has names of its own for the axes, which
    differ in their hashes, as those of equal names do from process to process, and sort alike.
    """
    params = {"sizes": dict(sizes), "order": list(order), **params}
    return Case(name, math.prod(sizes.values()), params, seed, kind=kind, timeout=40.0)


CUBE = {"dp": 2, "pp": 2, "tp": 2}
MEGATRON = ("pp", "dp", "tp")


def _cases(seed: int) -> list[Case]:
    grids: list[tuple[Sizes, Sequence[str]]] = [
        ({"dp": 2, "pp": 3, "tp": 4}, MEGATRON),
        ({"dp": 2, "pp": 3, "tp": 4}, ("dp", "tp", "pp")),
        ({"tp": 3, "dp": 11}, ("tp", "dp")),  # coordinates of two digits
        ({"ep": 2, "cp": 3, "dp": 2, "pp": 2}, ("pp", "ep", "dp", "cp")),
    ]
    ones: list[tuple[Sizes, Sequence[str]]] = [
        ({"dp": 1, "pp": 3, "tp": 1}, MEGATRON),
        ({"dp": 1}, ("dp",)),
        ({"dp": 1, "pp": 1, "tp": 1}, MEGATRON),
    ]
    pair = {"dp": 2, "tp": 2}
    return [
        places_case("several grids", grids, seed, "places"),
        places_case("axes of size 1", ones, seed, "places-of-one"),
        groups_case("two axes", pair, ("dp", "tp"), seed, then=[pair, ["tp", "dp"]]),
        groups_case("dp 1, pp 2, tp 2", {"dp": 1, "pp": 2, "tp": 2}, MEGATRON, seed, "groups-of-one"),
        groups_case(
            "dp 3, tp 2, dp innermost",
            {"dp": 3, "tp": 2},
            ("tp", "dp"),
            seed,
            then=[{"dp": 2, "tp": 3}, ["tp", "dp"]],
        ),
        groups_case("a cube", CUBE, MEGATRON, seed),
        groups_case("beside another group", pair, ("tp", "dp"), seed, before=[[0, 1]]),
        refused_case("grids of 8 ranks, and of 1, on 2", other_grids(CUBE, {"dp": 1}), seed),
        refused_case("ranks 8 and -1 of 8", ranks_outside(CUBE, MEGATRON, 8, -1), seed),
        refused_case(
            "other orders", orders_refused("rank_to_coordinates", CUBE, other_orders(MEGATRON), 0), seed
        ),
        refused_case(
            "groups of other orders",
            orders_refused("build_groups", {"dp": 2, "tp": 1}, other_orders(("dp", "tp"))),
            seed,
        ),
        refused_case("coordinates outside", places_outside({"dp": 2, "pp": 3, "tp": 2}, MEGATRON), seed),
    ]


# -- on a rank


def _ask_for_places(rank: Rank) -> None:
    """Facts: coordinates, ranks; for each grid one entry a rank. unchanged, whether arguments are. Orders are
    tuples and lists in turn.
    """
    coordinates, ranks, unchanged = [], [], True
    for number, (sizes, order) in enumerate(rank.params["grids"]):
        places = [placement_of(n, sizes) for n in range(math.prod(sizes.values()))]
        handed, places_handed = dict(sizes), deepcopy(places)
        axes = list(order) if number % 2 else tuple(order)
        given = [rank.student.rank_to_coordinates(n, handed, axes) for n in range(len(places))]
        coordinates.append([{axis: number_or_words(n) for axis, n in at.items()} for at in given])
        found = [rank.student.coordinates_to_rank(at, handed, axes) for at in places_handed]
        ranks.append([number_or_words(number) for number in found])
        as_handed = handed == sizes and list(axes) == order and places_handed == places
        unchanged = unchanged and as_handed
    rank.fact("coordinates", coordinates)
    rank.fact("ranks", ranks)
    rank.fact("unchanged", unchanged)


def placement_of(number: int, sizes: Sizes) -> dict[str, int]:
    """All places of a grid, one after the other, in no order that a rank has."""
    found = {}
    for axis in sorted(sizes):
        number, found[axis] = divmod(number, sizes[axis])
    return found


def grids_of(params: Mapping[str, Any]) -> list[tuple[Sizes, list[str]]]:
    """Sizes and order of the grids that a case builds, one after the other."""
    return [(params["sizes"], params["order"]), *([params["then"]] if "then" in params else [])]


def _build(rank: Rank) -> None:
    """Facts, of one grid after the other: axes, members and positions along each axis; unchanged, whether
    arguments are. Answers, when all grids are there: sum.GRID.AXIS, of 2^rank over each group. The first
    order is a tuple, the next a list.
    """
    for members in rank.params.get("before", []):
        dist.new_group(members)
    built, unchanged, grids = [], True, grids_of(rank.params)
    for number, (sizes, order) in enumerate(grids):
        names = {axis: f"{axis}{rank.rank}" if "own_names" in rank.params else axis for axis in order}
        named, in_order = {names[axis]: size for axis, size in sizes.items()}, list(names.values())
        handed, axes = dict(named), list(in_order) if number else tuple(in_order)
        groups = rank.student.build_groups(handed, axes, rank.group)
        usual = {own: axis for axis, own in names.items()}
        built.append({usual.get(name, name): group for name, group in groups.items()})
        unchanged = unchanged and handed == named and list(axes) == in_order
    rank.fact("unchanged", unchanged)
    rank.fact("axes", [sorted(groups) for groups in built])
    along = [{axis: groups[axis] for axis in order} for groups, (_, order) in zip(built, grids, strict=True)]
    for name, told in (("members", dist.get_process_group_ranks), ("positions", dist.get_rank)):
        rank.fact(name, [{axis: told(group) for axis, group in groups.items()} for groups in along])
    for number, groups in enumerate(along):
        for axis in groups:
            total = torch.tensor(2.0**rank.rank, dtype=torch.float64, device=rank.device)
            dist.all_reduce(total, group=groups[axis])
            rank.answer(f"sum.{number}.{axis}", total)


# -- in the judge


def _coordinates(evidence: Evidence) -> Iterator[Finding]:
    for (sizes, order), seen in zip(_grids(evidence), _fact(evidence, "coordinates"), strict=True):
        for number, at in enumerate(seen):
            expected = placement.coordinates_of(number, sizes, order)
            told = f"rank {number} of {_text(sizes)} in the order {', '.join(order)}: {_text(expected)}"
            yield Finding(dict(at) == expected, told, _text(at))


def _ranks(evidence: Evidence) -> Iterator[Finding]:
    for (sizes, order), seen in zip(_grids(evidence), _fact(evidence, "ranks"), strict=True):
        for number, found in enumerate(seen):
            at = placement_of(number, sizes)
            expected = placement.rank_of(at, sizes, order)
            told = f"{_text(at)} of {_text(sizes)} in the order {', '.join(order)}: rank {expected}"
            yield Finding(found == expected, told, f"rank {found}")


def _left_alone(evidence: Evidence, answer: RankAnswer) -> Finding:
    unchanged = answer.facts["unchanged"]
    return Finding(
        unchanged is True, "sizes, order and coordinates as they were handed over", "changed", answer.rank
    )


def _grids(evidence: Evidence) -> Any:
    return evidence.case.params["grids"]


def _fact(evidence: Evidence, name: str) -> Any:
    return evidence.answers[0].facts[name]


def _text(places: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {n}" for axis, n in sorted(places.items()))


def own_group(rank: int, axis: str, sizes: Sizes, order: Sequence[str]) -> list[int]:
    """The ranks of a rank's group along an axis."""
    return next(members for members in placement.groups_along(axis, sizes, order) if rank in members)


def _built(evidence: Evidence, answer: RankAnswer) -> Iterator[tuple[Sizes, Sequence[str], dict[str, Any]]]:
    """Sizes and order of each grid, and what this rank found of it."""
    for number, (sizes, order) in enumerate(grids_of(evidence.case.params)):
        names = ("axes", "members", "positions")
        yield sizes, order, {name: answer.facts[name][number] for name in names}


def _members(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for sizes, order, seen in _built(evidence, answer):
            told = sorted(sizes)
            yield Finding(
                seen["axes"] == told, f"groups along {', '.join(told)}", ", ".join(seen["axes"]), answer.rank
            )
            for axis in order:
                expected, found = own_group(answer.rank, axis, sizes, order), seen["members"][axis]
                told_group = f"ranks {expected} along {axis} in the order {', '.join(order)}"
                yield Finding(found == expected, told_group, f"ranks {found}", answer.rank)


def _positions(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for sizes, order, found in _built(evidence, answer):
            expected, seen = placement.coordinates_of(answer.rank, sizes, order), found["positions"]
            yield Finding(seen == expected, f"positions {_text(expected)}", _text(seen), answer.rank)


def _sums(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    for number, (sizes, order) in enumerate(grids_of(evidence.case.params)):
        for axis in order:
            members = own_group(answer.rank, axis, sizes, order)
            expected = torch.tensor(sum(2.0**member for member in members), dtype=torch.float64)
            told = f"the sum of 2^rank over ranks {members}"
            yield same(told, expected, answer, f"sum.{number}.{axis}")


def _all_sums(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _sums(evidence, answer))


def _of_one(evidence: Evidence) -> Iterator[Finding]:
    if "grids" in evidence.case.params:
        yield from _coordinates(evidence)
        yield from _ranks(evidence)
        return
    yield from _members(evidence)
    yield from _all_sums(evidence)


EXERCISE = Exercise(
    GRID_ID,
    "Ranks on a grid, and their groups",
    ("rank_to_coordinates", "coordinates_to_rank", "build_groups"),
    {
        "places": Run(_ask_for_places),
        "places-of-one": Run(_ask_for_places),
        "groups": Run(_build),
        "groups-of-one": Run(_build),
        "refused": Run(refuse),
    },
    _cases,
    (
        Property(
            "coordinates",
            "numbers",
            2,
            "Every rank has its coordinates; the last axis of the order counts fastest.",
            "the first axis counts fastest, or the axes are taken in the order of `sizes`",
            {"places": _coordinates},
        ),
        Property(
            "ranks",
            "numbers",
            1,
            "Every place has its rank, and stays as it was.",
            "sizes multiplied in another order than on the way there, or coordinates taken out of their dict",
            {"places": every(_ranks, on_each(_left_alone))},
        ),
        Property(
            "groups",
            "mechanism",
            3,
            "Along each axis a rank's group is the ranks that share its other coordinates.",
            "ranks that share the coordinate along the axis, instead of the others",
            {"groups": every(_members, on_each(_left_alone))},
        ),
        Property(
            "positions",
            "mechanism",
            1,
            "A rank's position in its group is its coordinate.",
            "the rank in the whole job, or the place in a list that is not sorted by the coordinate",
            {"groups": _positions},
        ),
        Property(
            "sums",
            "mechanism",
            1,
            "A sum over each group is that of its members.",
            "every rank must create every group, in the same order, and without use_local_synchronization",
            {"groups": _all_sums},
        ),
        Property(
            "size-one",
            "robustness",
            1,
            "Axes of size 1 have coordinates, and groups of one rank.",
            "axes of size 1 are passed over",
            {"places-of-one": _of_one, "groups-of-one": _of_one},
        ),
        Property(
            "refusals",
            "robustness",
            2,
            "A grid that does not fit the job, a rank or coordinate outside it, an order of other axes"
            " than the grid's: ValueErrors.",
            "-1 is a rank to Python's arithmetic, or an axis that has no size is a KeyError",
            {"refused": every(all_refused, nothing_made)},
        ),
    ),
    forbids=TORCHS_GRIDS,
    hides=HIDES,
)
