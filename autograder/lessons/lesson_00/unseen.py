"""Unseen cases of lesson 00: other sizes, ranks, groups and dtypes; numbers worked out in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_00.programs import grid_case, loss_case, pass_case
from labkit.checks.lesson_00.ring import ring_case
from labkit.checks.shared.formula import Row, agreement_case, refusal_case, values_case


def _ring_cases(seed: int) -> list[Case]:
    draw = Random(f"00/ring/{seed}")

    def case(ranks: int, shape: list[int], kind: str, **params: Any) -> Case:
        found = ring_case(ranks, shape, kind, seed, **params)
        return replace(found, name=f"unseen: {found.name}, {ranks} ranks")

    return [
        case(4, [draw.randint(30, 60), 2, 2], "sum-values"),
        case(4, [4 * draw.randint(2, 9) + draw.randint(1, 3)], "uneven-sizes"),
        case(4, [4, 8], "any-dtype", dtype="float32"),
        case(4, [8], "any-dtype", dtype="int64", after="bfloat16"),
        case(4, [2, 4, 6], "any-layout", layout="rows"),
        case(3, [draw.randint(2, 4), 2, 3, draw.randint(2, 5)], "any-layout", layout="mixed"),
        case(4, [12], "subgroup", groups=[[0, 3], [1, 2]]),
        case(5, [5 * draw.randint(40, 60)], "counted"),
        case(5, [draw.randint(1, 4)], "uneven-sizes"),
        case(5, [5 * draw.randint(1, 3)], "uneven-sizes"),  # few for each, and nothing to be filled up
        case(5, [24], "subgroup", groups=[[1, 3, 4], [0, 2]]),
        case(2, [draw.randint(150_000, 300_000), 2], "large-tensors"),
        case(2, [40], "any-dtype", dtype="int32", after="float32"),
        case(1, [2, draw.randint(1, 9)], "any-world-size"),
        *(case(*drawn, "counted", **params) for drawn, params in _drawn_rings(draw)),
    ]


WIDE, NARROW = ("float64", "float32", "int64", "int32", "int16"), ("float16", "bfloat16", "int8", "uint8")


def _drawn_rings(draw: Random) -> list[tuple[tuple[int, list[int]], dict[str, Any]]]:
    """Ranks, a shape of one to three dimensions and the rest of a case: messages are looked at for any of
    them. Narrow types are summed over two ranks, where their rounding does not depend on the order.
    """

    def shape(dims: int) -> list[int]:
        rest = [draw.randint(2, 6) for _ in range(dims - 1)]
        return [int(10 ** draw.uniform(1.5, 4.5)) // math.prod(rest) + 1, *rest]

    dims, narrow = draw.sample((1, 2, 3), 3), draw.sample(NARROW, len(NARROW))
    return [
        ((draw.choice((3, 4, 6)), shape(dims[0])), {"calls": draw.randint(1, 4)}),
        ((draw.choice((3, 4)), shape(dims[1])), {"dtype": draw.choice(WIDE), "calls": draw.randint(0, 2)}),
        ((2, shape(dims[2])), {"dtype": narrow[0], "calls": draw.randint(0, 4)}),
        *(((2, shape(draw.randint(1, 3))), {"dtype": dtype}) for dtype in narrow[1:]),
    ]


def _power(draw: Random, low: int, high: int) -> float:
    """A number with a few digits between 10^low and 10^high."""
    return float(f"{draw.randint(101, 999)}e{draw.randint(low, high - 1) - 2}")


def _and_a_half(draw: Random) -> float:
    """Bytes of which half of one can still be seen."""
    return draw.randint(10**2, 10**5) + 0.5


def _seconds_row(num_bytes: float, world_size: int, alpha: float, beta: float) -> Row:
    """2(n-1) alpha + 2(n-1)/n S beta, in exact arithmetic until the end."""
    n, size = Fraction(world_size), Fraction(num_bytes)
    value = 2 * (n - 1) * Fraction(alpha) + 2 * (n - 1) / n * size * Fraction(beta)
    row = {"num_bytes": num_bytes, "world_size": world_size, "alpha": alpha, "beta": beta}
    return row, float(value)


def _seconds_cases(seed: int) -> list[Case]:
    draw = Random(f"00/seconds/{seed}")

    def row(alpha: bool = True, beta: bool = True) -> Row:
        return _seconds_row(
            draw.randint(10**3, 10**10),
            draw.choice((2, 3, draw.randint(4, 40), draw.randint(41, 2000))),
            _power(draw, -7, -3) if alpha else 0.0,
            _power(draw, -12, -8) if beta else 0.0,
        )

    bad = {"num_bytes": 10, "world_size": -draw.randint(0, 5), "alpha": 1e-6, "beta": 1e-9}
    alone = {**bad, "num_bytes": -draw.randint(1, 9), "world_size": 1}
    two = _seconds_row(draw.randint(10**3, 10**10), 2, _power(draw, -7, -3), _power(draw, -12, -8))
    return [
        values_case("latency-term", [row(beta=False) for _ in range(4)], seed, ", unseen"),
        values_case("bandwidth-term", [row(alpha=False) for _ in range(4)], seed, ", unseen"),
        values_case("whole-formula", [two, *(row() for _ in range(6))], seed, ", unseen"),
        values_case("limits", [_seconds_row(draw.randint(1, 10**9), 1, 1e-5, 1e-9)], seed, ", unseen"),
        refusal_case("limits", [bad, alone], seed, ", unseen"),
        values_case(
            "bandwidth-term",
            [_seconds_row(_and_a_half(draw), draw.randint(3, 40), 0.0, _power(draw, -12, -8))],
            seed,
            ", unseen, not a whole number of bytes",
        ),
    ]


def _bandwidth_row(num_bytes: float, seconds: float, world_size: int) -> Row:
    """S/t 2(n-1)/n, in exact arithmetic until the end."""
    n = Fraction(world_size)
    value = Fraction(num_bytes) / Fraction(seconds) * 2 * (n - 1) / n
    return {"num_bytes": num_bytes, "seconds": seconds, "world_size": world_size}, float(value)


def _ideal(num_bytes: int, beta: float, world_size: int) -> dict[str, Any]:
    """What a ring without latency would be measured to take."""
    (row, seconds) = _seconds_row(num_bytes, world_size, 0.0, beta)
    return {"num_bytes": row["num_bytes"], "seconds": seconds, "world_size": world_size}


def _bandwidth_cases(seed: int) -> list[Case]:
    draw = Random(f"00/bandwidth/{seed}")
    size, seconds, beta = draw.randint(10**3, 10**10), _power(draw, -4, 1), _power(draw, -12, -8)
    several = [
        _bandwidth_row(draw.randint(10**3, 10**10), _power(draw, -4, 1), draw.randint(2, 300))
        for _ in range(5)
    ]
    several.append(_bandwidth_row(draw.randint(1, 9), 10 + draw.random(), draw.randint(2, 9)))
    several.append(_bandwidth_row(size, seconds, draw.randint(1000, 20_000)))
    several.append(_bandwidth_row(draw.randint(1, 9), _power(draw, -12, -9), draw.randint(2, 9)))
    several.append(_bandwidth_row(_and_a_half(draw), seconds, draw.randint(2, 300)))
    bad = {"num_bytes": size, "seconds": -seconds, "world_size": 8}
    return [
        values_case("bytes-per-second", several, seed, ", unseen"),
        agreement_case(
            "same-link-same-number", [_ideal(size, beta, n) for n in (2, 3, 6, 64)], seed, ", unseen"
        ),
        values_case(
            "limits",
            [_bandwidth_row(size, seconds, 1), _bandwidth_row(0, seconds, draw.randint(2, 300))],
            seed,
            ", unseen",
        ),
        refusal_case(
            "limits",
            [bad, {**bad, "world_size": 1}, {**bad, "seconds": seconds, "world_size": -draw.randint(0, 5)}],
            seed,
            ", unseen",
        ),
    ]


def _deadlock_cases(seed: int) -> list[Case]:
    draw = Random(f"00/deadlock/{seed}")
    cases = [
        pass_case(2, [draw.randint(1, 50)], "pass", seed, dtype="int64"),
        pass_case(5, [draw.randint(1, 9), 3], "pass-any-group", seed, groups=[[0, 2, 4], [1, 3]]),
        loss_case([0, draw.randint(1, 9), 0], "loss", seed, dtype="float32"),
        loss_case([draw.randint(2, 5), 2], "loss", seed, first="0"),
        loss_case([draw.randint(1, 3), 1], "loss", seed, first="inf"),
        loss_case([draw.randint(2, 3), 1], "loss-none", seed, first="3e38", dtype="float32"),
        grid_case(3, 2, "grid-shapes", seed),
        *_drawn_programs(draw, seed),
    ]
    return [replace(case, name=f"unseen: {case.name}") for case in cases]


def _drawn_programs(draw: Random, seed: int) -> list[Case]:
    """Calls are looked at for any dtype, shape and number of calls before."""
    floats, some = ("float16", "bfloat16", "float32"), [draw.randint(1, 30), *([3] * draw.randint(0, 2))]

    def often() -> dict[str, int]:
        return {"calls": draw.randint(1, 4)}

    return [
        pass_case(4, some, "pass", seed, dtype=draw.choice((*floats, "int32", "uint8")), **often()),
        pass_case(3, [draw.randint(100, 9000)], "pass-any-group", seed, dtype=draw.choice(floats), **often()),
        loss_case([draw.randint(1, 400), draw.randint(1, 9), 0, 3], "loss", seed, **often()),
        loss_case([draw.randint(1, 9), 4], "loss", seed, dtype=draw.choice(floats), **often()),
        grid_case(2, 2, "grid", seed, dtype=draw.choice(("float32", "int32")), **often()),
        grid_case(*draw.choice(((2, 3), (3, 2))), "grid-shapes", seed, dtype="float32", **often()),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "00.ring-all-reduce": _ring_cases,
    "00.all-reduce-seconds": _seconds_cases,
    "00.bus-bandwidth": _bandwidth_cases,
    "00.find-the-deadlock": _deadlock_cases,
}
