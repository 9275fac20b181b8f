"""What `10.straggler` must show: clocks put right, who came last to each collective, what that cost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_10.asked import Row, asks, changes_nothing, gives, rows_case
from labkit.checks.lesson_10.exposed import GIVEN, HIDES, TICK
from labkit.theory import breakdown  # as in `exposed`

SHORT_TICK = TICK / 2**12  # a rank that is late by a thousand comes within a microsecond
MANY = 40, 120  # collectives, as a run has
TWO_DAYS = 172_800_000_000.0  # in microseconds
Times = list[list[float]]


def _offsets(ends: Times) -> JSON:
    return breakdown.clocks_ahead(ends)


def _late(starts: Times, ends: Times) -> JSON:
    ahead = breakdown.clocks_ahead(ends)
    moved = [[moment - a for moment in own] for own, a in zip(starts, ahead, strict=True)]
    return [list(pair) for pair in breakdown.stragglers(moved)]


def _ranks(answer: Any) -> Any:
    return [pair[0] for pair in answer]


def _costs(answer: Any) -> Any:
    return [pair[1] for pair in answer]


CLOCKS, LATE = asks("clocks_ahead"), asks("find_stragglers")
WHO, COST = gives(_late, _ranks), gives(_late, _costs)

EXERCISE = Exercise(
    "10.straggler",
    "Who is late, and what it costs",
    ("clocks_ahead", "find_stragglers"),
    {
        "clocks": CLOCKS,
        "noisy-clocks": CLOCKS,
        "one-late": LATE,
        "swapping": LATE,
        "clocks-off": LATE,
        "small": LATE,
        "no-ends": CLOCKS,
    },
    lambda seed: straggler_cases(seed, ""),
    (
        Property(
            "clocks",
            "numbers",
            2,
            "By how much each clock is ahead of rank 0's, from the ends of the collectives.",
            "the starts were compared, or the sign is turned round",
            {"clocks": gives(_offsets)},
        ),
        Property(
            "woken-late",
            "robustness",
            2,
            "A rank that is woken late now and then does not move its clock.",
            "the first end, or the mean of all; the median is not moved by a few",
            {"noisy-clocks": gives(_offsets)},
        ),
        Property(
            "who",
            "numbers",
            2,
            "The rank that came last to each collective.",
            "the longest call was taken: its rank came first",
            {"one-late": WHO, "swapping": WHO},
        ),
        Property(
            "cost",
            "numbers",
            2,
            "What the others waited for it, together.",
            "the last rank's own time counted too, or only the longest wait",
            {"one-late": COST, "swapping": COST},
        ),
        Property(
            "clocks-off",
            "robustness",
            2,
            "The same where each rank has a clock of its own.",
            "starts compared before the clocks were put right",
            {"clocks-off": every(WHO, COST, changes_nothing)},
            dict.fromkeys(
                ("clocks", "noisy-clocks", "one-late", "swapping", "small", "no-ends"), changes_nothing
            ),
        ),
        Property(
            "small",
            "robustness",
            1,
            "One rank waits for nobody; no collectives, nobody late; together at once, the lowest rank.",
            "a median of nothing, or max() by a tuple that prefers the highest rank",
            {"small": gives(_late), "no-ends": gives(_offsets)},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def straggler_cases(seed: int, prefix: str) -> list[Case]:
    """Moments in whole microseconds, and twice in seconds, so that differences are exact: some of them are of
    less than a microsecond. Clocks are hours apart, by numbers that float32 does not have; or they are close,
    and moments are floats that it does not have, as of a run that is days old.
    """
    draw = Random(f"10/straggler/{prefix}{seed}")
    apart = [0, 3_600_000_001, -250_000]
    clocks = [
        {"ends": _run(draw, 3, 7, apart=apart)["ends"]},
        {"ends": _two_days_on(_run(draw, 2, 5, apart=[0, 40]))["ends"]},
    ]
    far = [0, 10**9 + 7, -70_000, 12]
    noisy = [{"ends": _run(draw, 4, 9, apart=far, woken=3)["ends"]} for _ in range(2)]
    noisy += [{"ends": _leaving_apart(draw, _run(draw, 4, 8, apart=far, woken=1)["ends"])}]
    noisy += [{"ends": _woken_at_first(draw, _run(draw, 3, 25, apart=apart)["ends"], 12)}]
    calls = draw.randint(*MANY)
    noisy += [{"ends": _woken_at_first(draw, _run(draw, 3, calls, apart=apart)["ends"], calls // 2 - 2)}]
    one_late = [_run(draw, 4, 6, late=lambda k: 2), _run(draw, 3, 5, late=lambda k: 0)]
    one_late += [_in_seconds(_run(draw, 3, 4, late=lambda k: 1))]
    swapping = [_run(draw, 4, 8, late=lambda k: k % 4), _run(draw, 3, 9)]
    off = [
        _run(draw, 4, 7, apart=[0, 10**9 + 7, -(10**6), 777]),
        _two_days_on(_run(draw, 3, 9, apart=[0, 50, -50], woken=2)),
    ]
    calls = draw.randint(*MANY)
    off += [_run(draw, 2, calls, apart=[0, 5000], woken=calls // 3)]
    swapping += [_in_seconds(_run(draw, 3, 6, late=lambda k: k % 3), SHORT_TICK)]
    clocks += [{"ends": _in_seconds(_run(draw, 3, 5, apart=[0, 1, -300]), SHORT_TICK)["ends"]}]
    small: list[Row] = [
        {"starts": [[0, 10]], "ends": [[5, 20]]},
        {"starts": [[], []], "ends": [[], []]},
        {"starts": [[1], [4], [4]], "ends": [[9], [9], [9]]},
        _together(draw, draw.randint(4, 6)),
    ]
    return [
        rows_case(f"{prefix}clocks", "clocks", clocks, seed),
        rows_case(f"{prefix}clocks, and ranks woken late", "noisy-clocks", noisy, seed),
        rows_case(f"{prefix}one late rank", "one-late", one_late, seed),
        rows_case(f"{prefix}ranks that swap roles", "swapping", swapping, seed),
        rows_case(f"{prefix}clocks that are off", "clocks-off", off, seed),
        rows_case(f"{prefix}next to nothing", "small", small, seed),
        rows_case(f"{prefix}clocks without collectives", "no-ends", [{"ends": [[], [], []]}], seed),
    ]


def _together(draw: Random, ranks: int) -> dict[str, Times]:
    """Collectives to which some ranks come in the very same moment: all, all but one that is before or after
    them, the first and the last alone; or whoever chance decides.
    """
    early, late = draw.sample(range(50), 2), [100] * ranks
    ends_late, middle_late = late.copy(), late.copy()
    ends_late[1:-1] = [early[0]] * (ranks - 2)
    middle_late[0], middle_late[-1] = early
    of_each = [[0, *late[1:]], [*late[1:], 0], [200, *late[1:]], [*late[1:], 200]]
    of_each += [late, ends_late, middle_late]
    of_each += [[100 * draw.randrange(3) for _ in range(ranks)] for _ in range(5)]
    draw.shuffle(of_each)
    came = [[1000 * k + moment for moment in moments] for k, moments in enumerate(of_each)]
    ends = [1000 * k + draw.randint(300, 900) for k in range(len(came))]
    return {
        "starts": [list(own) for own in zip(*came, strict=True)],
        "ends": [ends.copy() for _ in range(ranks)],
    }


def _leaving_apart(draw: Random, ends: Times) -> Times:
    """The same, rank 0 woken late once as well, and nobody leaving in quite the same moment as another."""
    found = [[end + draw.randint(0, 9) for end in own] for own in ends]
    found[0][draw.randrange(len(found[0]))] += draw.randint(1_000, 90_000)
    return found


def _woken_at_first(draw: Random, ends: Times, calls: int) -> Times:
    """The same, each rank but the first woken late by the first calls: fewer than half of them."""
    late = [[end + draw.randint(1_000, 90_000) for end in own[:calls]] for own in ends[1:]]
    return [ends[0], *(first + own[calls:] for first, own in zip(late, ends[1:], strict=True))]


def _in_seconds(run: dict[str, Times], tick: float = TICK) -> dict[str, Times]:
    """The same in seconds."""
    return {name: [[moment * tick for moment in own] for own in times] for name, times in run.items()}


def _two_days_on(run: dict[str, Times]) -> dict[str, Times]:
    """The same two days later, as floats."""
    return {name: [[moment + TWO_DAYS for moment in own] for own in times] for name, times in run.items()}


def _run(
    draw: Random,
    ranks: int,
    calls: int,
    apart: list[int] | None = None,
    woken: int = 0,
    late: Callable[[int], int] | None = None,
) -> dict[str, Times]:
    """Collectives that all leave together, but for `woken` ends of each rank but the first, by milliseconds.

    apart: how far each clock is ahead. late: the number of a collective -> the rank that comes last.
    """
    starts: Times = [[] for _ in range(ranks)]
    ends: Times = [[] for _ in range(ranks)]
    begin = 1000
    for k in range(calls):
        comes = [begin + draw.randint(0, 400) for _ in range(ranks)]
        if late is not None:
            comes[late(k)] = begin + 900 + draw.randint(0, 300)
        begin = max(comes) + draw.randint(200, 300)
        for rank in range(ranks):
            ahead = apart[rank] if apart else 0
            starts[rank].append(comes[rank] + ahead)
            ends[rank].append(begin + ahead)
    for rank in range(1, ranks):
        for k in draw.sample(range(calls), woken):
            ends[rank][k] += draw.randint(1_000, 90_000)
    return {"starts": starts, "ends": ends}
