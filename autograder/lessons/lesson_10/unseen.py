"""Unseen cases of lesson 10: other stretches, models, layers, documents and numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_10.breaking_down import breakdown_cases
from labkit.checks.lesson_10.even_work import alike_case, documents_case, drawn_lengths
from labkit.checks.lesson_10.exposed import exposed_cases
from labkit.checks.lesson_10.fast import fast_case
from labkit.checks.lesson_10.host_waits import SMALL, drawn_calls, waits_case
from labkit.checks.lesson_10.lateness import straggler_cases
from labkit.checks.lesson_10.overlapping import MANY_STEPS, overlap_case
from labkit.checks.lesson_10.utilisation import mfu_cases

PREFIX = "unseen: "
DTYPES = ("float32", "float64")


def _widths(draw: Random) -> list[int]:
    """Of layers of which the first two have far less than half of the bytes, and none has many: buckets of
    about equal bytes can be on their way while backward computes.
    """
    while True:
        widths = [draw.randint(8, 30) for _ in range(draw.randint(8, 10))]
        sizes = [(inner + 1) * outer for inner, outer in pairwise(widths)]
        if max(sizes) < sum(sizes) / 4 and sum(sizes[:2]) < 0.35 * sum(sizes):
            return widths


def _overlap(seed: int) -> list[Case]:
    draw = Random(f"10/overlap/{seed}")
    widths = _widths(draw)
    about = {"steps": draw.randint(*MANY_STEPS), "dtype": draw.choice(DTYPES)}
    return [
        overlap_case(f"{PREFIX}three ranks", "values", 3, seed, widths, dtype=draw.choice(DTYPES)),
        overlap_case(f"{PREFIX}a pair and one", "subgroup", 3, seed, widths, groups=[[2, 0], [1]], steps=3),
        overlap_case(f"{PREFIX}one rank", "alone", 1, seed, widths, steps=3),
        overlap_case(
            f"{PREFIX}biases as large as weights", "watched", 2, seed, [1, draw.randint(20, 28)] * 4 + [1]
        ),
        overlap_case(f"{PREFIX}watched", "watched", 3, seed, [draw.randint(16, 24)] * 6, **about),
    ]


def _waits(seed: int) -> list[Case]:
    draw = Random(f"10/waits/{seed}")
    sizes: dict[str, Any] = {"rows": draw.randint(3, 9), "width": 5, "slow": draw.random() < 0.5}
    given: dict[str, Any] = {"device": 1, "last_rows": draw.randint(2, 5), "slow": True}
    given |= {"tokens": draw.randint(2, 5), "columns": draw.randint(1, 3)}
    return [
        waits_case(f"{PREFIX}steps", "steps", seed, drawn_calls(draw, draw.randint(5, 12)), **sizes),
        waits_case(
            f"{PREFIX}steps in float32", "steps", seed, [draw.randint(3, 6), 3], dtype="float32", slow=True
        ),
        waits_case(f"{PREFIX}two steps", "few", seed, [2, draw.randint(1, 2)], slow=True),
        waits_case(f"{PREFIX}on cuda:1", "given", seed, drawn_calls(draw, draw.randint(2, 4)), **given),
        waits_case(
            f"{PREFIX}many steps, a slow link", "under-way", seed, [draw.randint(30, 40), 104], **SMALL
        ),
    ]


def _long_ones_at_the_end(draw: Random, long: int = 80) -> list[int]:
    """More documents than anybody shares out at once, some with one token to predict, and two of the four
    long ones come last of all.
    """
    short = [draw.randint(1, 6) for _ in range(126)]
    return [*short[:40], long, *short[40:90], long, *short[90:], long, long]


def _next_to_nothing(draw: Random) -> list[int]:
    """Of most documents one token is predicted, and two are read: half as much to do as their length says."""
    most = draw.randint(28, 40)
    return draw.sample([most] + [1] * most, most + 1)


def _documents(seed: int) -> list[Case]:
    draw = Random(f"10/unseen-documents/{seed}")
    return [
        documents_case(
            f"{PREFIX}three ranks", "balanced", 3, seed, drawn_lengths(draw, 3, 26, 3), gradients=True
        ),
        documents_case(f"{PREFIX}five ranks", "balanced", 5, seed, drawn_lengths(draw, 2, 41, 5, False)),
        documents_case(f"{PREFIX}some come twice", "balanced", 2, seed, [[17, 6, 25, 17, 11, 6]], twice=True),
        alike_case(f"{PREFIX}random numbers of their own", 3, seed),
        documents_case(f"{PREFIX}seven alike", "balanced", 4, seed, [[20] * 7]),
        documents_case(
            f"{PREFIX}many documents", "balanced", 4, seed, [_long_ones_at_the_end(draw)], gradients=False
        ),
        documents_case(
            f"{PREFIX}one long, many of two tokens", "balanced", 2, seed, [_next_to_nothing(draw)]
        ),
        documents_case(f"{PREFIX}two documents", "few", 3, seed, [[12, 3], [5, 5]]),
        documents_case(
            f"{PREFIX}a pair and one",
            "subgroup",
            3,
            seed,
            drawn_lengths(draw, 2, 12, 2),
            groups=[[0, 2], [1]],
        ),
    ]


def _fast(seed: int) -> list[Case]:
    draw = Random(f"10/fast/{seed}")
    batches = [[draw.randint(2, 4), 8], [draw.randint(2, 4), 16], [1, 4]]
    about = {"batches": batches, "layers": draw.randint(1, 2)}
    return [
        fast_case(f"{PREFIX}four ranks", "values", 4, seed, **about),
        fast_case(f"{PREFIX}four steps", "measured", 4, seed, batches=[[2, 16]] * 4, from_iterator=True),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "10.exposed-communication": lambda seed: exposed_cases(seed, PREFIX),
    "10.straggler": lambda seed: straggler_cases(seed, PREFIX),
    "10.step-breakdown": lambda seed: breakdown_cases(seed, PREFIX),
    "10.measured-mfu": lambda seed: mfu_cases(seed, PREFIX),
    "10.slow-program-1": _overlap,
    "10.slow-program-2": _waits,
    "10.slow-program-3": _documents,
    "10.make-it-fast": _fast,
}
