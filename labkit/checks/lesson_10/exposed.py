"""What `10.exposed-communication` must show: the time of communication that no computation hides."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_10.asked import Row, asks, changes_nothing, gives, rows_case
from labkit.theory import breakdown  # an empty file where this lesson is graded: judges alone call it

HIDES = ("theory/breakdown.py",)
GIVEN = tuple(
    f"labkit.theory.breakdown.{name}"
    for name in ("exposed", "length", "union", "step_share", "clocks_ahead", "stragglers")
)
Stretches = Sequence[Sequence[float]]


def _expected(compute: Stretches, communication: Stretches) -> float:
    return breakdown.exposed([(b, e) for b, e in compute], [(b, e) for b, e in communication])


RIGHT = gives(_expected)
TICK = 2.0**-20  # of a second: about a microsecond, and exact in sums
LATE = 3_600_000_001  # microseconds, an hour into a trace; float32 has no such number
MANY = 30, 150  # stretches, as a step has
LONG = 1100  # stretches: no Python goes as deep by recursion, and a trace has more
KINDS = ("plain", "covered", "overlapping", "touching", "unsorted", "empty")

EXERCISE = Exercise(
    "10.exposed-communication",
    "Communication that nothing hides",
    ("exposed_communication",),
    dict.fromkeys(KINDS, asks("exposed_communication")),
    lambda seed: exposed_cases(seed, ""),
    (
        Property(
            "plain",
            "numbers",
            2,
            "Communication counts where nothing is computed at the same time.",
            "all of the communication, or all of the gaps in the computation, was added up",
            {"plain": RIGHT, "covered": RIGHT},
        ),
        Property(
            "once",
            "numbers",
            2,
            "A moment counts once, however many calls are under way in it, or one call inside another.",
            "lengths were added without joining what overlaps",
            {"overlapping": RIGHT},
        ),
        Property(
            "touching",
            "robustness",
            1,
            "Stretches that touch leave no gap, none of no length counts, and the lists are not changed.",
            "a loop that leaves out a stretch which begins where another ends",
            {"touching": every(RIGHT, changes_nothing)},
        ),
        Property(
            "any-order",
            "robustness",
            2,
            "Stretches may come in any order, and the lists are not changed.",
            "only neighbours in the list were compared, or list.sort was called on an argument",
            {"unsorted": every(RIGHT, changes_nothing)},
            dict.fromkeys(("plain", "covered", "overlapping", "empty"), changes_nothing),
        ),
        Property(
            "nothing",
            "robustness",
            1,
            "No computation hides nothing; no communication is 0.",
            "the first element of an empty list",
            {"empty": RIGHT},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def exposed_cases(seed: int, prefix: str) -> list[Case]:
    """Stretches of whole microseconds, drawn from the seed, and some that are the same for everybody, parts
    of a microsecond, moments before 0, seconds and the end of a long trace among them.
    """
    draw = Random(f"10/exposed/{prefix}{seed}")
    plain = [
        _row([[0, 4], [10, 14]], [[2, 7], [12, 20]]),
        _row([[-6.5, -2.25], [0.125, 0.5]], [[-3.0, 0.25], [0.375, 0.875]]),
        _row(_placed([[3, 40], [50, 61]], TICK), _placed([[30, 52], [60, 80]], TICK)),
        _row(_placed([[0, 4], [5, 9]], TICK / 8), _placed([[0, 9]], TICK / 8)),  # a gap between two kernels
        _row(_placed([[0, 7.5], [9, 20]], 1, LATE), _placed([[4, 11], [18, 24.25]], 1, LATE)),
        *(_apart(draw) for _ in range(3)),
        _apart(draw, LONG),
    ]
    covered = [_row([[0, 100]], [[3, 9], [20, 100]]), _row([[10, 20]], [[0, 50]])]
    overlapping = [_row([[0, 2]], [[1, 8], [4, 6], [5, 12]]), *(_dense(draw, True) for _ in range(4))]
    touching = [
        _row([[0, 5], [5, 9]], [[3, 7], [7, 12]]),
        _row([[0, 5]], [[5, 9], [9, 9], [9, 11], [12, 12]]),
        _row([[2, 2], [4, 8], [10, 10]], [[0, 4], [8, 9]]),
    ]
    unsorted = [
        _row([[20, 30], [0, 5]], [[25, 40], [3, 9], [0, 1]]),
        *(_dense(draw, False) for _ in range(4)),
    ]
    overlapping.append(_dense(draw, True, draw.randint(*MANY)))
    unsorted.append(_dense(draw, False, draw.randint(*MANY)))
    empty = [_row([], [[1, 4], [3, 6]]), _row([[1, 4]], []), _row([], [])]
    told = {
        "plain": ("calls that do not overlap", plain),
        "covered": ("one inside the other", covered),
        "overlapping": ("several calls at once", overlapping),
        "touching": ("stretches that touch", touching),
        "unsorted": ("any order", unsorted),
        "empty": ("no stretches", empty),
    }
    return [rows_case(f"{prefix}{name}", kind, rows, seed) for kind, (name, rows) in told.items()]


def _row(compute: Stretches, communication: Stretches) -> Row:
    return {"compute": compute, "communication": communication}


def _placed(stretches: Stretches, unit: float, begin: float = 0.0) -> list[list[float]]:
    """The same in another unit, or later."""
    return [[begin + moment * unit for moment in stretch] for stretch in stretches]


def _apart(draw: Random, stretches: int = 6) -> Row:
    """Computation and communication that are each without overlap, in order."""
    moments = range(100 * stretches)
    return _row(*([[a, b] for a, b in _pairs(sorted(draw.sample(moments, 2 * stretches)))] for _ in range(2)))


def _pairs(moments: list[int]) -> list[tuple[int, int]]:
    return list(zip(moments[::2], moments[1::2], strict=True))


def _dense(draw: Random, in_order: bool, stretches: int = 9) -> Row:
    """Stretches that overlap, touch and lie in each other."""
    begins = range(200 * stretches // 9)
    lists = [
        [[begin, begin + draw.choice([1, 5, 20, 60])] for begin in draw.choices(begins, k=stretches)]
        for _ in range(2)
    ]
    return _row(*(sorted(one) if in_order else one for one in lists))
