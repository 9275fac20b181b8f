"""The two exercises of lesson 04 that ask for formulas: the bubble, and micro-batches in flight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory.pipeline import bubble_over_ideal

Setting = tuple[str, int, int, int]
"""schedule, ranks, micro-batches, chunks a rank."""
SCHEDULES = ("gpipe", "1f1b", "interleaved")


def formula_case(name: str, seed: int, settings: list[Setting], **params: Any) -> Case:
    """fewest: [schedule, ranks, chunks a rank] each, for the smallest number of micro-batches; shares: the
    same with the most of all time that may be idle.
    """
    return Case(name, 1, {"settings": [list(s) for s in settings], **params}, seed, kind="values")


def _text(setting: list[Any]) -> str:
    schedule, ranks, micro_batches, chunks = setting
    more = f", v={chunks}" if chunks > 1 else ""
    return f"{schedule}, p={ranks}, m={micro_batches}{more}"


def _close(seen: object, wanted: float) -> bool:
    return isinstance(seen, (int, float)) and math.isclose(seen, wanted, rel_tol=1e-9, abs_tol=1e-12)


# ---- 04.bubble-fraction

TIMES = ((1.0, 2.0), (1.0, 1.0), (0.5, 1.75), (2.0, 0.5), (0.0031, 0.0027))  # t_f, t_b
# The most of all time that may be idle. A bubble meets 1/5, 1/4, 1/2 and 5/8 exactly, in any order of
# operations; who solves for m in floats finds 12.000000000000002 for 1/5 on 4 ranks, or 3.0000000000000004
# for 5/8 on 6, and 12 and 3 are right. The others it does not meet, so that rounding decides nothing: 0.19999
# asks for 12.0008 on 4 ranks, which is 13. The least of them asks for thousands of micro-batches: no search
# may end before.
WANTED = (0.00037, 0.053, 0.103, 0.113, 0.19999, 0.2, 0.25, 0.5, 0.625)


def _ask_for_bubbles(rank: Rank) -> None:
    """Facts, one entry a setting: seconds (for each of TIMES), over-ideal, of-total. Fact: fewest."""
    student, settings = rank.student, rank.params["settings"]
    ratios = [number_or_words(student.bubble_over_ideal(s, p, m, *_chunks(v))) for s, p, m, v in settings]
    shares = [number_or_words(student.bubble_fraction(s, p, m, *_chunks(v))) for s, p, m, v in settings]
    seconds = [
        [number_or_words(student.batch_seconds(schedule, p, m, f, b, *_chunks(v))) for f, b in TIMES]
        for schedule, p, m, v in settings
    ]
    for name, fact in {"over-ideal": ratios, "of-total": shares, "seconds": seconds}.items():
        rank.fact(name, fact)
    with rank.attempt("fewest-micro-batches"):
        asked = _shares_asked(rank.case)
        rank.fact(
            "fewest",
            [number_or_words(student.fewest_micro_batches(s, p, w, *_chunks(v))) for s, p, v, w in asked],
        )


def _chunks(v: int) -> list[int]:
    """What is handed over of chunks a rank: nothing where there is one, which is the default."""
    return [v] if v != 1 else []


def _shares_asked(case: Case) -> list[tuple[str, int, int, float]]:
    """schedule, ranks, chunks a rank, the most of all time that may be idle."""
    everywhere = [(s, p, v, share) for s, p, v in case.params["fewest"] for share in WANTED]
    return [*everywhere, *map(tuple, case.params["shares"])]


def near_share(schedule: str, p: int, m: int, v: int, by: float) -> list[JSON]:
    """What to ask so that m micro-batches are just enough, or one step too few where `by` is below 0:
    schedule, ranks, chunks a rank, and m's idle share, relatively so much more.
    """
    return [schedule, p, v, _of_all_time(bubble_over_ideal(p, m, v)) * (1 + by)]


def _answered(evidence: Evidence, fact: str) -> Iterator[tuple[Any, Any]]:
    """Each setting, and what the student said of it."""
    return zip(evidence.case.params["settings"], evidence.answers[0].facts[fact], strict=True)


def _batches_take(evidence: Evidence) -> Iterator[Finding]:
    for setting, answers in _answered(evidence, "seconds"):
        _, p, m, v = setting
        for (forward, backward), seen in zip(TIMES, answers, strict=True):
            wanted = m * (forward + backward) * (1 + bubble_over_ideal(p, m, v))
            told = f"{wanted:g} s for {_text(setting)}, t_f={forward:g} s, t_b={backward:g} s"
            yield Finding(_close(seen, wanted), told, str(seen))


def _bubble_is(fact: str, of_ideal: Callable[[float], float]) -> Judge:
    """What was said equals this function of the bubble over the working time."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for setting, seen in _answered(evidence, fact):
            _, p, m, v = setting
            wanted = of_ideal(bubble_over_ideal(p, m, v))
            yield Finding(_close(seen, wanted), f"{wanted:.6g} for {_text(setting)}", str(seen))

    return judge


def _of_all_time(over_ideal: float) -> float:
    return over_ideal / (1 + over_ideal)


def _so_many_are_enough(evidence: Evidence) -> Iterator[Finding]:
    asked, answers = _shares_asked(evidence.case), evidence.answers[0].facts["fewest"]
    for (schedule, p, v, share), seen in zip(asked, answers, strict=True):
        wanted, chunks = fewest(schedule, p, v, share), f", v={v}" if v > 1 else ""
        told = f"{wanted}, an int, for at most {100 * share:.10g}% idle, {schedule}, p={p}{chunks}"
        yield Finding(seen == wanted and isinstance(seen, int), told, str(seen))


def fewest(schedule: str, p: int, v: int, share: float) -> int:
    """By trying: interleaved stages take multiples of p only, also where a rank has one."""
    step = p if schedule == "interleaved" else 1
    m = step
    while _of_all_time(bubble_over_ideal(p, m, v)) > share + 1e-12:
        m += step
    return m


def _bubble_cases(seed: int) -> list[Case]:
    settings: list[Setting] = [
        ("gpipe", 4, 16, 1),
        ("1f1b", 4, 16, 1),
        ("interleaved", 4, 16, 2),
        ("gpipe", 4, 4, 1),
        ("1f1b", 8, 3, 1),
        ("interleaved", 8, 8, 4),
        ("interleaved", 4, 8, 1),
        ("interleaved", 1, 3, 2),
        ("1f1b", 1, 5, 1),
        ("1f1b", 16, 1000, 1),
    ]
    one_chunk = ["interleaved", 4, 1]
    fewest_of = [["gpipe", 4, 1], ["1f1b", 8, 1], ["interleaved", 8, 2], one_chunk, ["gpipe", 1, 1]]
    fewest_of += [["1f1b", 6, 1], ["interleaved", 1, 2]]
    just = [near_share("1f1b", 4, 12, 1, by) for by in (1e-6, -1e-6)]
    return [formula_case("published sizes", seed, settings, fewest=fewest_of, shares=just)]


BUBBLE_FRACTION = Exercise(
    "04.bubble-fraction",
    "The bubble, by both definitions",
    ("batch_seconds", "bubble_over_ideal", "bubble_fraction", "fewest_micro_batches"),
    {"values": Run(_ask_for_bubbles)},
    _bubble_cases,
    (
        Property(
            "batch-seconds",
            "numbers",
            2,
            "The time of a batch, for any t_f and t_b.",
            "t_b is taken to be 2 t_f, or the p-1 steps of fill and drain are left out",
            {"values": _batches_take},
        ),
        Property(
            "over-ideal",
            "numbers",
            2,
            "Idle time over working time, for each schedule.",
            "1F1B is believed to have a smaller bubble than GPipe",
            {"values": _bubble_is("over-ideal", lambda over_ideal: over_ideal)},
        ),
        Property(
            "of-total",
            "numbers",
            2,
            "Idle time over all time, for each schedule.",
            "(p-1)/m is relative to the working time; relative to all time it is (p-1)/(m+p-1)",
            {"values": _bubble_is("of-total", _of_all_time)},
        ),
        Property(
            "fewest-micro-batches",
            "robustness",
            2,
            "The smallest m that keeps the idle share within a limit, with one rank and with chunks.",
            "interleaved stages need a multiple of p; one rank has no bubble and needs one micro-batch",
            {"values": _so_many_are_enough},
        ),
    ),
    forbids=("labkit.theory.pipeline.bubble_over_ideal", "labkit.theory.pipeline.bubble_of_total"),
)

# ---- 04.peak-in-flight


def _ask_for_peaks(rank: Rank) -> None:
    """Fact: counts, for each setting one a rank."""
    peak, settings = rank.student.peak_in_flight, rank.params["settings"]
    counts = [
        [number_or_words(peak(schedule, r, p, m, *_chunks(v))) for r in range(p)]
        for schedule, p, m, v in settings
    ]
    rank.fact("counts", counts)


def _counts_of(about: str) -> Judge:
    """The counts of a schedule that has enough micro-batches for its warm-up, or of all that have "few"."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for setting, counts in _answered(evidence, "counts"):
            schedule, p, m, v = setting
            few = m < p or m * v <= 2 * (p - 1) + (v - 1) * p
            if about == ("few" if few else schedule):
                for rank, seen in enumerate(counts):
                    wanted = chunks_in_flight(schedule, rank, p, m, v)
                    told = f"{wanted} on rank {rank} for {_text(setting)}"
                    yield Finding(_close(seen, wanted), told, str(seen))

    return judge


def _are_ints(evidence: Evidence) -> Iterator[Finding]:
    """Counts are ints in every setting, as the function says: range() takes no float."""
    for setting, counts in _answered(evidence, "counts"):
        others = [seen for seen in counts if not isinstance(seen, int)]
        yield Finding(not others, f"an int on every rank for {_text(setting)}", f"{others[:1]}")


def chunks_in_flight(schedule: str, rank: int, p: int, m: int, v: int) -> int:
    """Forwards open at once: m; min(m, p-r); min(vm, 2(p-r-1)+(v-1)p+1)."""
    if schedule == "gpipe":
        return m
    warm_up = p - rank - 1 if schedule == "1f1b" else 2 * (p - rank - 1) + (v - 1) * p
    return min(m * v, warm_up + 1)


def _peak_cases(seed: int) -> list[Case]:
    return [
        formula_case(
            "one to eight ranks",
            seed,
            [
                ("gpipe", 4, 8, 1),
                ("1f1b", 4, 8, 1),
                ("interleaved", 4, 8, 2),
                ("1f1b", 2, 5, 1),
                ("1f1b", 4, 2, 1),
                ("interleaved", 4, 4, 3),
                ("interleaved", 8, 8, 2),
                ("interleaved", 4, 8, 1),
                ("interleaved", 4, 4, 1),
                ("gpipe", 4, 3, 1),
                ("gpipe", 1, 3, 1),
                ("1f1b", 1, 3, 1),
                ("interleaved", 1, 3, 2),
            ],
        ),
    ]


PEAK_IN_FLIGHT = Exercise(
    "04.peak-in-flight",
    "How much each stage holds",
    ("peak_in_flight",),
    {"values": Run(_ask_for_peaks)},
    _peak_cases,
    (
        Property(
            "gpipe",
            "numbers",
            1,
            "GPipe: all m, on every stage.",
            "m and p are exchanged",
            {"values": _counts_of("gpipe")},
        ),
        Property(
            "1f1b",
            "numbers",
            2,
            "1F1B: less on each stage further on.",
            "p on every stage: that is the first stage only",
            {"values": _counts_of("1f1b")},
        ),
        Property(
            "interleaved",
            "numbers",
            2,
            "Interleaved: the chunks of a longer warm-up, and one more.",
            "micro-batches are counted instead of chunks",
            {"values": _counts_of("interleaved")},
        ),
        Property(
            "few-micro-batches",
            "robustness",
            1,
            "Never more than there are, and an int.",
            "the bound by m is missing, or a number was divided",
            {"values": every(_counts_of("few"), _are_ints)},
        ),
    ),
    forbids=("labkit.theory.pipeline.in_flight",),
)
