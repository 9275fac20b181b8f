"""What `10.step-breakdown` must show: four parts that together are the step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Exercise, Judge, Property, every
from labkit.checks.lesson_10.asked import Row, asks, changes_nothing, gives, refuses, rows_case
from labkit.checks.lesson_10.exposed import GIVEN, HIDES, LATE, MANY, TICK
from labkit.checks.shared.beside import is_refused
from labkit.theory import breakdown  # as in `exposed`

Rows = Sequence[Sequence[float]]


def _expected(begin: float, end: float, compute: Rows, calls: Rows) -> dict[str, JSON]:
    share = breakdown.step_share(begin, end, [(b, e) for b, e in compute], [(b, e, c) for b, e, c in calls])
    return share.as_dict()


def _part(name: str) -> Judge:
    return gives(_expected, lambda answer: answer[name])


def _sum(answer: dict[str, float]) -> float:
    return sum(answer.values())


WHOLE = gives(_expected)
KINDS = ("one-call", "behind", "several", "outside")

EXERCISE = Exercise(
    "10.step-breakdown",
    "Where a step's time goes",
    ("step_breakdown",),
    dict.fromkeys((*KINDS, "empty", "own-parts"), asks("step_breakdown"))
    | {"refused": refuses("step_breakdown")},
    lambda seed: breakdown_cases(seed, ""),
    (
        Property(
            "compute",
            "numbers",
            1,
            "Computation is counted once, where it overlaps too.",
            "lengths added up",
            {"one-call": _part("compute"), "several": _part("compute")},
        ),
        Property(
            "exposed",
            "numbers",
            2,
            "A call communicates from when the last rank came; what computation hides does not count.",
            "the wait for the last rank was counted as communication, or a time beyond the call's end",
            {"one-call": _part("exposed"), "behind": _part("exposed"), "several": _part("exposed")},
        ),
        Property(
            "waiting",
            "numbers",
            2,
            "Waiting is where nothing is computed and nothing communicates.",
            "a wait that lies behind computation, or behind another call, was counted",
            {"one-call": _part("waiting"), "behind": _part("waiting"), "several": _part("waiting")},
        ),
        Property(
            "whole",
            "numbers",
            1,
            "The four parts add up to the step, whatever overlaps, and where nothing is computed or sent.",
            "idle time is the step less the *union* of all else; either list may be empty",
            {kind: gives(_expected, _sum) for kind in KINDS} | {"empty": WHOLE},
        ),
        Property(
            "step-only",
            "robustness",
            2,
            "What lies before the step or after it does not count; what reaches into it does with that part."
            " The lists are as they were: the next step needs them.",
            "stretches were left out or taken whole by their beginning, or cut in the list handed over",
            {"outside": every(WHOLE, changes_nothing)},
            dict.fromkeys(("one-call", "behind", "several", "empty"), changes_nothing),
        ),
        Property(
            "refused",
            "robustness",
            1,
            "A step that ends before it begins is refused with a ValueError.",
            "a negative length that goes on as if it were one",
            {"refused": is_refused("refusal", "ValueError")},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own exposed_communication.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": WHOLE},
        ),
    ),
    builds_on=("10.exposed-communication",),
    forbids=GIVEN,
    hides=HIDES,
)


def breakdown_cases(seed: int, prefix: str) -> list[Case]:
    """Whole microseconds, drawn from the seed, and some that are the same for everybody, parts of a
    microsecond, moments before 0, seconds and the end of a long trace among them.
    """
    draw = Random(f"10/breakdown/{prefix}{seed}")
    one_call = [
        _row(0, 100, [[0, 40]], [[40, 90, 60]]),
        _row(0, 100, [[5, 40]], [[40, 90, 40]]),
        _row(10, 80, [[10, 30]], [[35, 70, 70]]),
        _row(-1.5, 2.25, [[-1.25, -0.5]], [[-0.75, 1.5, 0.125]]),
        _row(0, 90 * TICK, [[3 * TICK, 40 * TICK]], [[35 * TICK, 77 * TICK, 52 * TICK]]),
        _row(0, 100, [[5, 30]], [[40, 90, 33]]),
        _row(-20, 30, [[-15, -7]], [[-9, 21, 0]]),
        _row(0, 3 * TICK, [[TICK / 8, TICK]], [[TICK, 2 * TICK, 1.25 * TICK]]),
        _row(LATE, LATE + 90, [[LATE + 3, LATE + 40]], [[LATE + 35, LATE + 77, LATE + 52.5]]),
    ]
    behind = [
        _row(0, 100, [[0, 40], [50, 80]], [[30, 90, 60]]),
        _row(0, 60, [[0, 50]], [[10, 55, 20]]),
        _row(0, 50, [[0, 10]], [[10, 40, 30], [15, 35, 15]]),
        _row(0, 50, [[0, 10]], [[10, 40, 15], [10, 40, 35]]),
    ]
    several = [_drawn(draw, 0, 300) for _ in range(5)]
    several.append(_drawn(draw, 0, 300, draw.randint(*MANY)))
    outside = [
        _row(5, 5, [[0, 9]], [[1, 8, 4]]),
        _row(50, 60, [[0, 52]], [[40, 58, 55], [59, 90, 70]]),
        _row(50, 60, [[0, 90]], []),  # it begins before the step and ends after it; so do these calls
        _row(50, 60, [], [[40, 90, 55]]),
        *(_drawn(draw, 80, 140) for _ in range(4)),
    ]
    empty = [
        _row(0, 50, [], []),
        _row(3, 50, [[5, 9]], []),
        _row(0, 45, [], [[5, 20, 10]]),
        _row(2, draw.randint(50, 90), [], [[5, 20, 10], [15, 40, 17]]),
    ]
    own = [_drawn(draw, 0, 300) for _ in range(3)]
    return [
        rows_case(f"{prefix}one call", "one-call", one_call, seed),
        rows_case(f"{prefix}calls behind computation", "behind", behind, seed),
        rows_case(f"{prefix}several of everything", "several", several, seed),
        rows_case(f"{prefix}a step in a longer trace", "outside", outside, seed),
        rows_case(f"{prefix}nothing computed, nothing sent", "empty", empty, seed),
        rows_case(f"{prefix}a step backwards", "refused", [_row(10, 5, [], [])], seed),
        rows_case(f"{prefix}with your own exposed_communication", "own-parts", own, seed),
    ]


def _row(begin: float, end: float, compute: Rows, calls: Rows) -> Row:
    return {"begin": begin, "end": end, "compute": compute, "calls": calls}


def _drawn(draw: Random, begin: int, end: int, stretches: int = 6) -> Row:
    """Overlapping computation and calls; some calls for which somebody came only after they had ended,
    or all before they began.
    """
    compute = [[b, b + draw.randint(1, 40)] for b in draw.choices(range(220), k=stretches)]
    calls = []
    for b in draw.choices(range(220), k=stretches):
        length = draw.randint(1, 50)
        calls.append([b, b + length, b + draw.choice([-9, 0, length // 2, length, length + 7])])
    return _row(begin, end, compute, calls)
