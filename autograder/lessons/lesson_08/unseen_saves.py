"""Unseen cases of saving in shards: other tensors and names, steps, and moments at which a rank dies."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_08.resumed import own_parts_case
from labkit.checks.lesson_08.tried_saves import checkpoint_case, full_disk_case, killed_case

LETTERS = "abcdefghijklmnopqrstuvwxyz_"
RARE = ["uint8", "int8", "int16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]
AGAIN = [3, 9, 9, 9]


def _names(draw: Random) -> list[str]:
    """Of two, case alone tells which is which; one is long, and one has spaces and letters beyond a to z."""
    word, long = ("".join(draw.choices(LETTERS, k=k)) for k in (6, 200))
    return [word, word.upper(), f"größer als 0: {word}", long]


def _steps(draw: Random) -> list[int]:
    """More than anybody keeps by number, in no order."""
    return draw.sample([10**6, 999_999, *draw.sample(range(2000), draw.randint(14, 22))], k=16)


def checkpoint_cases(seed: int) -> list[Case]:
    """For a seed."""
    draw = Random(f"08/checkpoint/{seed}")
    tensors: dict[str, Any] = {
        "a.b": [draw.randint(30, 90), "float32"],
        "c": [draw.randint(1, 3), "bfloat16"],
        "d": [draw.randint(4, 20), "float64"],
    }
    others = {"e": [17, "float16"], "f": [8, "int32"], "g": [30_019, "bool"]}
    others |= {"j": [30_007, "uint16"], "k": [11, "complex64"]}
    ones = {"h": [1, "float32"], "i": [1, "float32"]}  # padding only on most ranks
    named = {name: [draw.randint(0, 30), draw.choice(RARE)] for name in _names(draw)}
    large = {"a": [30_001, "float64"], "b": [9_002, "bfloat16"]}
    by_two = {"saved_by": [[1, 2]]}
    return [
        checkpoint_case(
            "unseen: three ranks", "same-ranks", 3, seed, tensors=tensors | others | ones | named
        ),
        checkpoint_case("unseen: 4 to fewer", "other-ranks", 4, seed, tensors=tensors, load_on=[1, 2, 3]),
        checkpoint_case("unseen: 12 to 2", "other-ranks", 12, seed, tensors=tensors, load_on=[2]),
        checkpoint_case(
            "unseen: large, 2 to 4", "other-ranks", 4, seed, tensors=large, **by_two, load_on=[4]
        ),
        checkpoint_case("unseen: sizes", "on-disk", 3, seed, tensors=large, steps=[draw.randint(0, 9), 40]),
        checkpoint_case("unseen: many steps", "several", 2, seed, tensors=tensors, steps=_steps(draw)),
        checkpoint_case("unseen: again and again", "several", 2, seed, steps=[5] * 12),
        checkpoint_case(
            "unseen: again on fewer",
            "several",
            4,
            seed,
            steps=[5, 8, 8],
            saved_by=[[0, 4], [0, 4], [0, 1]],
            load_on=[1, 3],
        ),
        full_disk_case("unseen: a full disk", 3, 1, seed),
        killed_case("unseen: killed early", 3, 0, seed, tensors=tensors, steps=AGAIN, killed_at=0.0),
        killed_case(
            "unseen: large, killed",
            4,
            draw.randrange(4),
            seed,
            tensors=large,
            steps=draw.choice([AGAIN, [3, 9, 9]]),
            killed_at=draw.random(),
        ),
        killed_case("unseen: killed alone", 1, 0, seed, tensors=tensors),
        checkpoint_case("unseen: power, again", "power", 2, seed, tensors=large, steps=[5, 8, 8]),
        checkpoint_case(
            "unseen: power, little", "power", 4, seed, tensors=tensors, steps=[draw.randint(1, 9)]
        ),
        checkpoint_case("unseen: power, alone", "power", 1, seed, tensors=large, steps=[2, 11]),
        own_parts_case("unseen: saved on 4, resumed on 2", 4, 2, seed),
    ]
