"""Unseen cases of lesson 04: other sizes, other schedules, and orders of actions drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_04.executor_cases import bad_lists_case, foreign_stage_case, run_case
from labkit.checks.lesson_04.formulas import SCHEDULES, Setting, formula_case, near_share
from labkit.checks.lesson_04.lists import (
    forwards_first,
    gpipe,
    lists_by_choice,
    one_at_a_time,
    one_f_one_b,
    random_lists,
    some_at_a_time,
)
from labkit.checks.lesson_04.schedules import schedule_case, turns_case
from labkit.checks.lesson_04.splitting import batches_case, split_case

MANY = 70  # micro-batches: more than any bound on what is on its way


def _unseen(case: Case) -> Case:
    return replace(case, name=f"unseen: {case.name}")


def _split(seed: int) -> list[Case]:
    draw = Random(f"04/split/{seed}")
    shapes = []
    for rest in ([], [3], [2, 5], [1], [4, 2]):
        m = draw.randint(2, 9)
        shapes.append([m, m * draw.randint(1, 4) + draw.randint(0, m - 1), *rest])
    samples = draw.randint(2, 9)
    refused = [[samples + draw.randint(1, 3), samples], [-draw.randint(2, 5), samples]]
    kinds = [_shape(draw, 7, dims) for dims in (0, 1, 2, 3, 4, 1, 2)] + [
        _shape(draw, 40, 1),
        _shape(draw, 40, 3),
    ]
    return [
        split_case("unseen shapes", seed, shapes, refused=refused),
        batches_case("unseen batches", seed, draw.sample(kinds, len(kinds))),
    ]


def _shape(draw: Random, most: int, dims: int) -> list[int]:
    """Up to `most` micro-batches of a batch of so many dimensions beside the first."""
    m = draw.randint(most // 2, most)
    return [m, m * draw.randint(1, 3) + draw.randint(0, m - 1), *(draw.randint(1, 4) for _ in range(dims))]


def _sizes(draw: Random) -> list[list[int]]:
    sizes = [[p, draw.randint(p + 1, 4 * p)] for p in (2, 5, draw.randint(6, 8))]
    return [*sizes, [p := draw.randint(4, 7), draw.randint(1, p - 1)], [p, p], [1, 1]]


def _far(draw: Random) -> list[list[int]]:
    """Many micro-batches, and many ranks, as no table in a text has them."""
    p = draw.randint(24, 40)
    both = [draw.randint(5, 9), draw.randint(100, 200)]
    return [[draw.randint(2, 4), draw.randint(300, 900)], [p, draw.randint(p + 1, 90)], both]


def _thousands(draw: Random, seed: int, *chunks: int) -> Case:
    """As many micro-batches as no function can call itself for."""
    p = draw.randint(2, 3)
    return schedule_case("unseen: many", seed, [[p, p * draw.randint(510, 600), *chunks]], "many")


def _schedule(seed: int) -> list[Case]:
    draw = Random(f"04/schedule/{seed}")
    sizes = [*_sizes(draw), [12, 30], [17, 9], *_far(draw)]
    return [schedule_case("unseen sizes", seed, sizes), _thousands(draw, seed)]


def _one_f_one_b(seed: int) -> list[Case]:
    draw = Random(f"04/turns/{seed}")
    turns = [[draw.randint(0, 3), draw.randint(4, 8)], [draw.randint(5, 9), 4], [0, draw.randint(1, 4)]]
    turns += [[draw.randint(0, 60), draw.randint(10, 80)] for _ in range(3)]
    return [*_schedule(seed), turns_case("unseen: in_turn by itself", seed, turns)]


def _interleaved(seed: int) -> list[Case]:
    draw = Random(f"04/interleaved/{seed}")
    sizes = [[p, p * draw.randint(1, 4), draw.randint(2, 4)] for p in (2, 3, draw.randint(4, 6))]
    p = draw.randint(3, 6)
    remainders = [
        [p, p * draw.randint(1, 4) + draw.randint(1, p - 1), draw.randint(1, 6)],
        [draw.randint(7, 12), draw.randint(1, 6), draw.randint(1, 6)],
    ]
    chunks = [[p, p * draw.randint(1, 4), draw.randint(5, 9)], [2, 8, 5], [draw.randint(4, 6), 60, 4]]
    many = draw.randint(12, 16)
    far = [[2, 2 * draw.randint(150, 300), 2], [many, 3 * many, draw.randint(2, 4)]]
    return [
        schedule_case("unseen sizes", seed, [*sizes, [2, 80, 2], *far, *chunks]),
        _thousands(draw, seed, 2),
        schedule_case("unseen: remainders", seed, remainders, "refused"),
        schedule_case("unseen: your own in_turn", seed, sizes[:1], "own-parts"),
    ]


def _bubble(seed: int) -> list[Case]:
    draw = Random(f"04/bubble/{seed}")
    p, v = draw.randint(2, 16), draw.randint(2, 6)
    many, wide = draw.randint(130, 999), draw.randint(100, 400)
    settings: list[Setting] = [
        ("gpipe", p, draw.randint(1, 64), 1),
        ("1f1b", p, draw.randint(1, 64), 1),
        ("interleaved", p, p * draw.randint(1, 8), v),
        ("gpipe", 1, draw.randint(1, 9), 1),
        ("gpipe", p, many, 1),
        ("1f1b", wide, draw.randint(1000, 9000), 1),
        ("interleaved", wide, wide * draw.randint(1, 30), draw.randint(7, 20)),
    ]
    fewest: list[Any] = [
        ["1f1b", p, 1],
        ["gpipe", draw.randint(2, 9), 1],
        ["interleaved", p, v],
        ["1f1b", 1, 1],
        ["interleaved", 1, 3],
    ]
    return [formula_case("unseen sizes", seed, settings, fewest=fewest, shares=_shares(draw))]


def _shares(draw: Random) -> list[Any]:
    """Just more and just less than some number of micro-batches leaves idle, from a few micro-batches to more
    than a hundred thousand, and shares near one.
    """
    p, wide, v = draw.randint(2, 9), draw.randint(250, 400), draw.randint(2, 5)
    few = [near_share("1f1b", p, draw.randint(2, 30), 1, by) for by in (1e-6, -1e-6)]
    few += [near_share("gpipe", p + 3, draw.randint(2, p), 1, by) for by in (1e-8, -1e-8)]
    few += [near_share("interleaved", p, p * draw.randint(1, 9), v, by) for by in (1e-6, -1e-6)]
    most_of_it = [near_share("1f1b", wide, draw.randint(2, 9), 1, by) for by in (1e-6, -1e-6)]
    half_a_batch = draw.uniform(1e-6, 3e-6)  # of more than 150,000
    far = [near_share("gpipe", wide, draw.randint(150_000, 160_000), 1, half_a_batch)]
    far += [near_share("interleaved", wide, wide * draw.randint(300, 400), 1, 1e-6)]
    return [*few, *most_of_it, *far]


def _peak(seed: int) -> list[Case]:
    draw = Random(f"04/peak/{seed}")
    p, v = draw.randint(3, 9), draw.randint(2, 5)
    settings: list[Setting] = [
        ("gpipe", p, p + draw.randint(1, 20), 1),
        ("1f1b", p, p + draw.randint(1, 20), 1),
        ("1f1b", p, draw.randint(1, p - 1), 1),
        ("interleaved", p, 4 * p, v),
        ("interleaved", p, p, v),
        ("interleaved", p, 4 * p, v + 4),
        ("gpipe", p, 1, 1),
        *[(name, 1, draw.randint(2, 9), v if name == "interleaved" else 1) for name in SCHEDULES],
        ("1f1b", 10 * p, draw.randint(100, 999), 1),
        ("interleaved", 5 * p, 5 * p * draw.randint(1, 9), v),
    ]
    return [formula_case("unseen sizes", seed, settings)]


def _widths(draw: Random, num_stages: int) -> list[list[int]]:
    """One to three layers a stage, of 2 to 8 wide; what leaves a stage enters the next."""
    widths = []
    enters = draw.randint(2, 8)
    for _ in range(num_stages):
        own = [enters, *(draw.randint(2, 8) for _ in range(draw.randint(1, 3)))]
        widths.append(own)
        enters = own[-1]
    return widths


def _row(kind: str, stage: int, micro_batches: Iterable[int]) -> list[list[Any]]:
    """One kind of action on a stage, micro-batch after micro-batch."""
    return [[kind, stage, i] for i in micro_batches]


def _wanted_last_first(m: int) -> list[list[Any]]:
    """Two ranks that send all of their messages before the first of them is wanted."""
    up, down = range(m), range(m - 1, -1, -1)
    return [
        [*_row("forward", 0, up), *_row("backward", 0, down)],
        [*_row("forward", 1, down), *_row("backward", 1, up)],
    ]


def _ends_differently(m: int) -> list[list[Any]]:
    """One rank with two stages, the last backward of each of which is another micro-batch's."""
    up, down = range(m), range(m - 1, -1, -1)
    forwards = [*_row("forward", 0, up), *_row("forward", 1, up)]
    return [[*forwards, *_row("backward", 1, up), *_row("backward", 0, down)]]


def _in_two_groups(draw: Random) -> Callable[[int, int, int], list[list[Any]]]:
    """(ranks, stages, micro-batches) -> lists that do some of these, there and back, and then the others."""

    def lists(ranks: int, stages: int, m: int) -> list[list[Any]]:
        mixed, first = draw.sample(range(m), m), draw.randint(1, m - 1)
        return [list(own) for own in some_at_a_time(ranks, stages, [mixed[:first], mixed[first:]])]

    return lists


def _in_many_random_orders(seed: int) -> list[Case]:
    """More micro-batches, and more stages, than a number that counts both has room for in its digits."""
    draw = Random(f"04/run/many/{seed}")
    many = [(2, 4, draw.randint(24, 34)), (2, draw.randint(12, 15), draw.randint(3, 4))]
    return [
        _unseen(
            run_case(
                "any-schedule",
                seed,
                random_lists(ranks, stages, m, draw.randint(0, 10**6)),
                _widths(draw, stages),
                [1] * m,
                schedule=f"a random order of {m} micro-batches",
            )
        )
        for ranks, stages, m in many
    ]


def _run(seed: int) -> list[Case]:
    draw, some = Random(f"04/run/{seed}"), _in_two_groups(Random(f"04/run/groups/{seed}"))

    def case(
        kind: str, lists: list[list[Any]], stages: int, sizes: list[int], told: str = "", **more: Any
    ) -> Case:
        widths = _widths(draw, stages)
        params: dict[str, Any] = {"schedule": told or kind, **more}
        if kind.startswith("tied"):
            widths[-1][-1] = widths[0][0]
            params["vocabulary"] = draw.randint(5, 12)
        return _unseen(run_case(kind, seed, lists, widths, sizes, **params))

    m, b, again = draw.choice((5, 6, 7)), draw.randint(1, 3), draw.randint(0, 10**6)
    uneven = [draw.randint(1, 3), draw.randint(4, 6), draw.randint(1, 3), draw.randint(4, 6)]
    as_first = [*uneven[:3], uneven[0]]  # as many rows in the last micro-batch as in the first
    widths = [[4, 6], [6], [6, 3]]
    no_weights = run_case("few", seed, gpipe(3, 2), widths, [2] * 2, schedule="a stage without weights")
    cases = [
        case("gpipe", gpipe(3, m), 3, [b] * m),
        case("naive", one_at_a_time(2, 2, 5), 2, [b] * 5),
        case("train", some(3, 3, 4), 3, [b] * 4),
        case("in-flight", one_f_one_b(3, m), 3, [1] * m, "1F1B"),
        case("any-schedule", random_lists(3, 6, 3, again), 6, [b] * 3, "a random order"),
        case("any-schedule", random_lists(2, 5, 4, again), 5, [1] * 4, "a random order"),
        case("any-schedule", random_lists(1, 4, 9, again), 4, [1] * 9, "a random order on one rank"),
        case("in-flight", one_at_a_time(1, 3, 8), 3, [1] * 8, "all stages on one rank"),
        case("unequal", some(3, 3, 4), 3, as_first),
        case("few", lists_by_choice(4, 3, 2, forwards_first), 3, [2, 2], "a rank without a stage"),
        case("tied", some(2, 4, 3), 4, [2] * 3, "two stages a rank"),
        case("tied-train", some(3, 3, 4), 3, [2] * 4),
        case("ready", random_lists(1, 3, 3, again), 3, [2] * 3, "a random order"),
        case("one-rank", some(1, 1, 4), 1, uneven, "one stage"),
        case("any-schedule", _wanted_last_first(MANY), 2, [1] * MANY, "the last message wanted first"),
        case("unequal", some(2, 2, 3), 2, [2, 3, 1], "sequences of 3, 1 and 4 tokens", lengths=[3, 1, 4]),
        case("tied", some(2, 3, 3), 3, [2] * 3, "both halves on one rank"),
        case("ready", _ends_differently(3), 2, [2] * 3, "other orders on other stages"),
        _unseen(no_weights),
        *_in_many_random_orders(seed),
    ]
    return [*cases, *map(_unseen, (bad_lists_case(seed), foreign_stage_case(seed, _widths(draw, 3))))]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "04.split-micro-batches": _split,
    "04.gpipe-schedule": _schedule,
    "04.one-f-one-b-schedule": _one_f_one_b,
    "04.interleaved-schedule": _interleaved,
    "04.bubble-fraction": _bubble,
    "04.peak-in-flight": _peak,
    "04.run-schedule": _run,
}
