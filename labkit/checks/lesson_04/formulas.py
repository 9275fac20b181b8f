"""The two exercises of lesson 04 that ask for formulas: the bubble, and micro-batches in flight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Property
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory.pipeline import bubble_over_ideal

Setting = tuple[str, int, int, int]
"""schedule, ranks, micro-batches, chunks a rank."""


def formula_case(name: str, seed: int, settings: list[Setting], **params: Any) -> Case:
    return Case(name, 1, {"settings": [list(s) for s in settings], **params}, seed)


def _text(setting: list[Any]) -> str:
    schedule, ranks, micro_batches, chunks = setting
    more = f", v={chunks}" if chunks > 1 else ""
    return f"{schedule}, p={ranks}, m={micro_batches}{more}"


def _close(seen: object, wanted: float) -> bool:
    return isinstance(seen, (int, float)) and math.isclose(seen, wanted, rel_tol=1e-9, abs_tol=1e-12)


# ---- 04.bubble-fraction

TIMES = ((1.0, 2.0), (1.0, 1.0), (0.5, 1.75))  # t_f, t_b
WANTED = (0.05, 0.1, 0.25, 0.5)  # the most of all time that may be idle


def _bubble_on_rank(rank: Rank) -> None:
    student, answers = rank.student, []
    for schedule, p, m, v in rank.params["settings"]:
        seconds = [number_or_words(student.batch_seconds(schedule, p, m, f, b, v)) for f, b in TIMES]
        ratio = number_or_words(student.bubble_over_ideal(schedule, p, m, v))
        fraction = number_or_words(student.bubble_fraction(schedule, p, m, v))
        answers.append([seconds, ratio, fraction])
    rank.fact("answers", answers)
    with rank.attempt("fewest-micro-batches"):
        asked = [(s, p, v, share) for s, p, v in rank.params["fewest"] for share in WANTED]
        rank.fact(
            "fewest",
            [number_or_words(student.fewest_micro_batches(s, p, share, v)) for s, p, v, share in asked],
        )


def _judge_bubble(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    facts = answers[0].facts
    for setting, (seconds, ratio, fraction) in zip(case.params["settings"], facts["answers"], strict=True):
        told, (_, p, m, v) = _text(setting), setting
        r = bubble_over_ideal(p, m, v)
        for (forward, backward), seen in zip(TIMES, seconds, strict=True):
            wanted = m * (forward + backward) * (1 + r)
            what = f"{wanted:g} s for {told}, t_f={forward:g} s, t_b={backward:g} s"
            yield Finding("batch-seconds", _close(seen, wanted), what, str(seen))
        yield Finding("over-ideal", _close(ratio, r), f"{r:.6g} for {told}", str(ratio))
        share = r / (1 + r)
        yield Finding("of-total", _close(fraction, share), f"{share:.6g} for {told}", str(fraction))
    asked = [(s, p, v, share) for s, p, v in case.params["fewest"] for share in WANTED]
    for (schedule, p, v, share), seen in zip(asked, facts.get("fewest", [None] * len(asked)), strict=True):
        wanted = fewest(p, v, share)
        what = f"{wanted} for at most {share:.0%} idle, {schedule}, p={p}" + (f", v={v}" if v > 1 else "")
        yield Finding("fewest-micro-batches", seen == wanted, what, str(seen))


def fewest(p: int, v: int, share: float) -> int:
    """By trying: interleaved stages take multiples of p only."""
    step = p if v > 1 else 1
    m = step
    while bubble_over_ideal(p, m, v) / (1 + bubble_over_ideal(p, m, v)) > share + 1e-12:
        m += step
    return m


def _bubble_cases(seed: int) -> list[Case]:
    settings = [
        ("gpipe", 4, 16, 1),
        ("1f1b", 4, 16, 1),
        ("interleaved", 4, 16, 2),
        ("gpipe", 4, 4, 1),
        ("1f1b", 8, 3, 1),
        ("interleaved", 8, 8, 4),
        ("1f1b", 1, 5, 1),
    ]
    fewest_of = [("gpipe", 4, 1), ("1f1b", 8, 1), ("interleaved", 8, 2), ("gpipe", 1, 1)]
    return [formula_case("published sizes", seed, [*settings], fewest=[list(f) for f in fewest_of])]


BUBBLE_FRACTION = Exercise(
    "04.bubble-fraction",
    "The bubble, by both definitions",
    ("batch_seconds", "bubble_over_ideal", "bubble_fraction", "fewest_micro_batches"),
    (
        Property(
            "batch-seconds",
            "numbers",
            2,
            "The time of a batch, for any t_f and t_b.",
            "t_b is taken to be 2 t_f, or the p-1 steps of fill and drain are left out",
        ),
        Property(
            "over-ideal",
            "numbers",
            2,
            "Idle time over working time, for each schedule.",
            "1F1B is believed to have a smaller bubble than GPipe",
        ),
        Property(
            "of-total",
            "numbers",
            2,
            "Idle time over all time, for each schedule.",
            "(p-1)/m is relative to the working time; relative to all time it is (p-1)/(m+p-1)",
        ),
        Property(
            "fewest-micro-batches",
            "robustness",
            2,
            "The smallest m that keeps the idle share within a limit, with one rank and with chunks.",
            "interleaved stages need a multiple of p; one rank has no bubble and needs one micro-batch",
        ),
    ),
    _bubble_cases,
    lambda case, generator: {},
    _bubble_on_rank,
    _judge_bubble,
    forbids=("labkit.theory.pipeline.bubble_over_ideal", "labkit.theory.pipeline.bubble_of_total"),
)

# ---- 04.peak-in-flight


def _peak_on_rank(rank: Rank) -> None:
    counts = []
    for schedule, p, m, v in rank.params["settings"]:
        counts.append([number_or_words(rank.student.peak_in_flight(schedule, r, p, m, v)) for r in range(p)])
    rank.fact("counts", counts)


def _judge_peak(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    for setting, counts in zip(case.params["settings"], answers[0].facts["counts"], strict=True):
        schedule, p, m, v = setting
        for rank, seen in enumerate(counts):
            wanted = chunks_in_flight(schedule, rank, p, m, v)
            name = "few-micro-batches" if m < p or m * v <= 2 * (p - 1) + (v - 1) * p else schedule
            yield Finding(
                name, _close(seen, wanted), f"{wanted} on rank {rank} for {_text(setting)}", str(seen)
            )


def chunks_in_flight(schedule: str, rank: int, p: int, m: int, v: int) -> int:
    """Forwards open at once: m; min(m, p-r); min(vm, 2(p-r-1)+(v-1)p+1)."""
    if schedule == "gpipe":
        return m
    warm_up = p - rank - 1 if schedule == "1f1b" else 2 * (p - rank - 1) + (v - 1) * p
    return min(m * v, warm_up + 1)


def _peak_cases(seed: int) -> list[Case]:
    return [
        formula_case(
            "four, two and eight ranks",
            seed,
            [
                ("gpipe", 4, 8, 1),
                ("1f1b", 4, 8, 1),
                ("interleaved", 4, 8, 2),
                ("1f1b", 2, 5, 1),
                ("1f1b", 4, 2, 1),
                ("interleaved", 4, 4, 3),
                ("interleaved", 8, 8, 2),
                ("gpipe", 4, 3, 1),
            ],
        ),
    ]


PEAK_IN_FLIGHT = Exercise(
    "04.peak-in-flight",
    "How much each stage holds",
    ("peak_in_flight",),
    (
        Property("gpipe", "numbers", 1, "GPipe: all m, on every stage.", "m and p are exchanged"),
        Property(
            "1f1b",
            "numbers",
            2,
            "1F1B: less on each stage further on.",
            "p on every stage: that is the first stage only",
        ),
        Property(
            "interleaved",
            "numbers",
            2,
            "Interleaved: the chunks of a longer warm-up, and one more.",
            "micro-batches are counted instead of chunks",
        ),
        Property(
            "few-micro-batches", "robustness", 1, "Never more than there are.", "the bound by m is missing"
        ),
    ),
    _peak_cases,
    lambda case, generator: {},
    _peak_on_rank,
    _judge_peak,
    forbids=("labkit.theory.pipeline.in_flight",),
)
