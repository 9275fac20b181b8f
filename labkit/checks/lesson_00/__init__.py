"""What the exercises of lesson 00 must show: a ring all-reduce, its cost, three repaired programs."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Property
from labkit.checks.lesson_00 import programs, ring
from labkit.checks.shared.formula import agreement_case, formula_exercise, refusal_case, values_case


def _seconds_cases(seed: int) -> list[Case]:
    def row(num_bytes: float, world_size: int, alpha: float, beta: float) -> dict[str, float]:
        return {"num_bytes": num_bytes, "world_size": world_size, "alpha": alpha, "beta": beta}

    return [
        values_case("latency-term", [(row(4096, 8, 5e-6, 0.0), 7e-5), (row(10**9, 2, 1e-3, 0.0), 2e-3)]),
        values_case(
            "bandwidth-term", [(row(10**9, 8, 0.0, 1e-11), 0.0175), (row(3 * 10**6, 3, 0.0, 1e-9), 0.004)]
        ),
        values_case(
            "bandwidth-term", [(row(2.5, 4, 0.0, 1.0), 3.75)], suffix=", not a whole number of bytes"
        ),
        values_case(
            "whole-formula", [(row(10**8, 8, 5e-6, 1e-11), 0.00182), (row(10**6, 5, 2e-5, 1e-9), 0.00176)]
        ),
        values_case("limits", [(row(10**6, 1, 1e-3, 1e-3), 0.0), (row(0, 4, 1e-3, 1e-9), 6e-3)]),
        refusal_case("limits", [row(10, 0, 1e-6, 1e-9), row(-1, 4, 1e-6, 1e-9), row(-1, 1, 1e-6, 1e-9)]),
    ]


SECONDS = formula_exercise(
    "00.all-reduce-seconds",
    "What an all-reduce costs",
    "all_reduce_seconds",
    [
        Property(
            "latency-term",
            "mechanism",
            1,
            "With beta = 0 the time is that of the steps alone",
            "n-1 steps are counted, those of one half; a ring all-reduce has two halves",
        ),
        Property(
            "bandwidth-term",
            "mechanism",
            1,
            "With alpha = 0 the time is that of the bytes one rank sends",
            "S beta, the whole tensor once, or 2 S beta, which is the limit for many ranks",
        ),
        Property(
            "whole-formula", "numbers", 1, "Both terms add up", "one of the two terms is off; see its row"
        ),
        Property(
            "limits",
            "robustness",
            1,
            "One rank costs nothing; fewer than one, or negative bytes, is a ValueError",
            "nothing checks the arguments",
        ),
    ],
    _seconds_cases,
    forbids=("labkit.theory.communication.all_reduce_seconds",),
    hides=("theory/communication.py",),
)


def _bandwidth_cases(seed: int) -> list[Case]:
    def row(num_bytes: float, seconds: float, world_size: int) -> dict[str, float]:
        return {"num_bytes": num_bytes, "seconds": seconds, "world_size": world_size}

    return [
        values_case("bytes-per-second", [(row(10**9, 0.0175, 8), 1e11), (row(4 * 10**6, 0.5, 4), 1.2e7)]),
        values_case("bytes-per-second", [(row(3.5, 10.0, 4), 0.525)], suffix=", less than one"),
        values_case("bytes-per-second", [(row(3, 2e-10, 4), 2.25e10)], suffix=", in less than a nanosecond"),
        agreement_case(
            "same-link-same-number",
            [row(10**8, t, n) for n, t in ((2, 0.01), (4, 0.015), (5, 0.016), (8, 0.0175))],
        ),
        values_case("limits", [(row(10**6, 0.1, 1), 0.0), (row(0, 0.1, 4), 0.0)]),
        refusal_case(
            "limits",
            [
                *(row(10, 0.0, 4), row(10, -1.0, 4), row(10, 1.0, 0), row(10, 0.0, 1), row(10, 1.0, -2)),
                *(row(0, 0.0, 4), row(0, 1.0, 0)),
            ],
        ),
    ]


BANDWIDTH = formula_exercise(
    "00.bus-bandwidth",
    "Bus bandwidth",
    "bus_bandwidth",
    [
        Property(
            "bytes-per-second",
            "numbers",
            1,
            "The value is nccl-tests' bus bandwidth of an all-reduce, in bytes per second",
            "S/t alone is the algorithm bandwidth; (n-1)/n is the factor of reduce-scatter; or it is in GB/s",
        ),
        Property(
            "same-link-same-number",
            "mechanism",
            1,
            "A ring without latency over the same links gives the same number for every n: the link's",
            "S/t without a factor, or with the limit 2 as the factor",
        ),
        Property(
            "limits",
            "robustness",
            1,
            "One rank uses no link, and no bytes none: 0. Seconds that are not positive, or no ranks, is a"
            " ValueError",
            "nothing checks the arguments",
        ),
    ],
    _bandwidth_cases,
    forbids=("labkit.theory.communication.bus_bandwidth",),
    hides=("theory/communication.py",),
)

EXERCISES = [ring.EXERCISE, SECONDS, BANDWIDTH, programs.EXERCISE]
