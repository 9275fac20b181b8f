"""What saving in shards is tried on: who saves, who loads, and what goes wrong meanwhile."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_08.resumed import own_parts_case

LARGE = 600_000  # numbers of a flat tensor on 2 ranks, in float32: more than FULL_DISK


def checkpoint_case(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
    """tensors: name -> [total, dtype]; steps: saved in this order; saved_by: [first rank, how many] of each;
    load_on: numbers of ranks.
    """
    tensors = {"weights": [23, "float64"], "moments": [23, "float32"], "small": [2, "bfloat16"]}
    tensors |= {"odd": [5, "float32"], "blocks.0.count": [9, "int64"], "none": [0, "float32"]}
    sizes = {"tensors": tensors, "steps": [4], "load_on": [ranks], **params}
    return Case(name, ranks, sizes, seed, kind=kind, timeout=60.0)


def full_disk_case(name: str, ranks: int, full_on: int, seed: int) -> Case:
    """One rank cannot write its part of the second checkpoint, until it is saved once more."""
    tensors = {"weights": [LARGE // 2 * ranks, "float32"]}
    return checkpoint_case(
        name, "full-disk", ranks, seed, tensors=tensors, steps=[3, 9, 9], full_on=full_on, load_on=[ranks]
    )


def killed_case(name: str, ranks: int, killed: int, seed: int, **params: Any) -> Case:
    """One rank is killed in the last file that it writes of the last save but one, or where `killed_at` says:
    a part, from 0 on and below 1, of what it does to files.
    """
    sizes = {"steps": [3, 9, 9], "killed": killed, "load_on": [ranks], **params}
    return checkpoint_case(name, "killed", ranks, seed, **sizes)


def checkpoint_cases(seed: int) -> list[Case]:
    """The visible cases."""
    large = {"weights": [40_001, "float32"], "moments": [40_001, "float64"], "odd": [5, "float32"]}
    return [
        checkpoint_case("saved and loaded on two ranks", "same-ranks", 2, seed, steps=[0]),
        checkpoint_case("saved on 4, loaded on 3, 2 and 1", "other-ranks", 4, seed, load_on=[3, 2, 1]),
        checkpoint_case(
            "saved by the last 2 of 3", "other-ranks", 3, seed, saved_by=[[1, 2]], load_on=[1, 3]
        ),
        checkpoint_case(
            "forty thousand numbers, on other ranks", "other-ranks", 3, seed, tensors=large, load_on=[2, 1]
        ),
        checkpoint_case("forty thousand numbers, twice", "on-disk", 4, seed, tensors=large, steps=[4, 13]),
        checkpoint_case(
            "three steps, one of them twice", "several", 2, seed, steps=[9, 10**6, 10**6 - 1, 10**6]
        ),
        checkpoint_case(
            "again on fewer ranks", "several", 3, seed, steps=[7, 7], saved_by=[[0, 3], [0, 2]], load_on=[2]
        ),
        full_disk_case("a full disk on the last rank", 2, 1, seed),
        full_disk_case("a full disk on the first of 4 ranks", 4, 0, seed),
        killed_case("the first rank is killed while it saves a step again", 2, 0, seed, steps=[3, 9, 9, 9]),
        killed_case("one of 4 ranks is killed while it saves a step again", 4, 1, seed, steps=[3, 9, 9, 9]),
        checkpoint_case("a rank is killed before", "killed", 3, seed, steps=[3, 9, 9, 9], never_comes=0),
        checkpoint_case("a power failure when a name says whole", "power", 2, seed, tensors=large),
        checkpoint_case("a power failure in a second save of little", "power", 3, seed, steps=[4, 13]),
        checkpoint_case("an empty folder", "nothing", 2, seed, steps=[], tensors={}),
        own_parts_case("stage 3, saved on 4 ranks, resumed on 3", 4, 3, seed),
        checkpoint_case("one rank", "same-ranks", 1, seed),
    ]
