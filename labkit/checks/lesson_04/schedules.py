"""What the three exercises of lesson 04 that ask for a schedule must show: GPipe, 1F1B, interleaved 1F1B."""

from __future__ import annotations

from dataclasses import replace

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_04.rules import (
    Size,
    are_lists_of_actions,
    ask_for_lists,
    ask_for_the_impossible,
    ask_in_turn,
    every_action_once,
    forwards_first,
    holds_at_most,
    in_every_size,
    refuses_remainders,
    runs_to_its_end,
    takes_as_long_as,
    takes_turns,
    works_at_once,
)
from labkit.checks.rank import Rank

ONE_F_ONE_B_ID = "04.one-f-one-b-schedule"


def schedule_case(name: str, seed: int, sizes: list[list[int]], kind: str = "values") -> Case:
    """sizes: [ranks, micro-batches] or [ranks, micro-batches, chunks] each; "refused" ones have no
    schedule.
    """
    return Case(name, 1, {"sizes": sizes}, seed, kind=kind, own_parts=kind == "own-parts")


def _plain_cases(seed: int) -> list[Case]:
    sizes = [[4, 8], [2, 5], [3, 7], [4, 4], [4, 2], [3, 1], [1, 3]]
    return [
        schedule_case("m > p, m = p, m < p", seed, sizes),
        schedule_case("1200 micro-batches", seed, [[2, 1200]], "many"),
    ]


def turns_case(name: str, seed: int, turns: list[list[int]]) -> Case:
    """turns: [warm-up, forwards] each, for in_turn by itself."""
    return Case(name, 1, {"turns": turns}, seed, kind="in-turn")


def _one_f_one_b_cases(seed: int) -> list[Case]:
    turns = [[0, 3], [2, 5], [4, 4], [6, 3], [1, 1], [3, 0], [14, 20]]
    return [*_plain_cases(seed), turns_case("in_turn by itself", seed, turns)]


def _interleaved_cases(seed: int) -> list[Case]:
    sizes = [[4, 8, 2], [2, 6, 3], [3, 3, 2], [2, 2, 2], [1, 4, 2], [4, 8, 6]]
    return [
        schedule_case("two, three and six chunks", seed, sizes),
        schedule_case("1200 micro-batches", seed, [[2, 1200, 2]], "many"),
        schedule_case("a remainder", seed, [[4, 6, 2], [3, 2, 2], [4, 6, 1]], "refused"),
        schedule_case("one chunk", seed, [[3, 6, 1]], "one-chunk"),
        schedule_case("your own in_turn", seed, [[2, 4, 2], [3, 3, 2]], "own-parts"),
    ]


def _gpipe(rank: Rank, r: int, size: Size) -> object:
    return rank.student.gpipe_schedule(r, size.ranks, size.micro_batches)


def _one_f_one_b(rank: Rank, r: int, size: Size) -> object:
    return rank.student.one_f_one_b_schedule(r, size.ranks, size.micro_batches)


def _interleaved(rank: Rank, r: int, size: Size) -> object:
    return rank.student.interleaved_schedule(r, size.ranks, size.micro_batches, size.chunks)


def _stages_from_here(size: Size, rank: int) -> int:
    return min(size.micro_batches, size.ranks - rank)


def _warm_up_and_one(size: Size, rank: int) -> int:
    """Megatron's warm-up and one more: 2(p-r-1) + (v-1)p + 1 chunks, or all there are."""
    warm_up = 2 * (size.ranks - rank - 1) + (size.chunks - 1) * size.ranks
    return min(size.chunks * size.micro_batches, warm_up + 1)


ONCE = in_every_size(every_action_once)
ONCE_IN_LISTS = every(ONCE, are_lists_of_actions)
IN_TIME = in_every_size(takes_as_long_as)
TO_THE_END = in_every_size(runs_to_its_end)
HELD_AND_AT_ONCE = every(in_every_size(holds_at_most(_stages_from_here)), in_every_size(works_at_once))
FEW_HELD = in_every_size(holds_at_most(_warm_up_and_one))
EVERYTHING = every(ONCE, IN_TIME, FEW_HELD, TO_THE_END)
EVERY_ACTION = Property(
    "every-action-once",
    "numbers",
    2,
    "Each micro-batch goes forward and back once through each stage.",
    "the last micro-batches are left out of the cool-down, or the warm-up is longer than m when m < p",
    dict.fromkeys(("values", "many"), ONCE_IN_LISTS),
)
NO_DEADLOCK = Property(
    "no-deadlock",
    "robustness",
    2,
    "A dry run of all ranks' lists reaches the end.",
    "a backward stands before its own forward, or two ranks order their micro-batches differently",
    {"values": TO_THE_END},
    {"many": TO_THE_END},
)

GPIPE = Exercise(
    "04.gpipe-schedule",
    "GPipe",
    ("gpipe_schedule",),
    dict.fromkeys(("values", "many"), Run(ask_for_lists(_gpipe))),
    _plain_cases,
    (
        replace(
            EVERY_ACTION,
            usual_cause="a micro-batch is left out of the backwards, or an action has another stage's number",
        ),
        Property(
            "forwards-first",
            "mechanism",
            1,
            "All forwards come before the first backward.",
            "forward and backward of one micro-batch stand together: that is the naive schedule",
            {"values": in_every_size(forwards_first)},
            {"many": in_every_size(forwards_first)},
        ),
        Property(
            "makespan",
            "numbers",
            3,
            "The batch takes (m+p-1)(t_f+t_b), whatever the backward costs.",
            "the order of the backwards is reversed on some stages and not on others",
            {"values": IN_TIME},
            {"many": IN_TIME},
        ),
        NO_DEADLOCK,
    ),
)

ONE_F_ONE_B = Exercise(
    ONE_F_ONE_B_ID,
    "1F1B",
    ("one_f_one_b_schedule", "in_turn"),
    {
        **dict.fromkeys(("values", "many"), Run(ask_for_lists(_one_f_one_b))),
        "in-turn": Run(ask_in_turn),
    },
    _one_f_one_b_cases,
    (
        EVERY_ACTION,
        Property(
            "makespan",
            "numbers",
            3,
            "The batch takes as long as with GPipe: (m+p-1)(t_f+t_b).",
            "the warm-up is too short: stage r needs p-r-1 forwards before its first pair",
            {"values": IN_TIME},
            {"many": IN_TIME},
        ),
        Property(
            "in-flight",
            "mechanism",
            8,
            "Stage r never holds more than min(m, p-r) micro-batches, and yet stages work at once.",
            "the warm-up is too long, or counts from the wrong end: the last stage has none",
            {"values": HELD_AND_AT_ONCE},
            {"many": HELD_AND_AT_ONCE},
        ),
        NO_DEADLOCK,
        Property(
            "in-turn",
            "robustness",
            1,
            "in_turn arranges whatever actions it is handed, and leaves the lists as they are.",
            "actions are made anew, or taken out of the lists, or some are dropped",
            {"in-turn": takes_turns},
        ),
    ),
)

INTERLEAVED = Exercise(
    "04.interleaved-schedule",
    "Interleaved 1F1B",
    ("interleaved_schedule",),
    {
        **dict.fromkeys(("values", "many"), Run(ask_for_lists(_interleaved))),
        "refused": Run(ask_for_the_impossible(_interleaved)),
        **dict.fromkeys(("one-chunk", "own-parts"), Run(ask_for_lists(_interleaved))),
    },
    _interleaved_cases,
    (
        EVERY_ACTION,
        Property(
            "makespan",
            "numbers",
            3,
            "The bubble is v times smaller: the batch takes m(t_f+t_b) + (p-1)(t_f+t_b)/v.",
            "chunks are not taken in groups of p micro-batches, or the warm-up is the plain one",
            {"values": IN_TIME},
            {"many": IN_TIME},
        ),
        Property(
            "in-flight",
            "mechanism",
            3,
            "Rank r holds at most 2(p-r-1) + (v-1)p + 1 chunks.",
            "the warm-up is longer than it need be",
            {"values": FEW_HELD},
            {"many": FEW_HELD},
        ),
        NO_DEADLOCK,
        Property(
            "refuses-remainder",
            "robustness",
            1,
            "Micro-batches that are no multiple of the ranks are a ValueError; one chunk is not.",
            "the last group is not full: its chunks would wait for micro-batches that do not exist",
            {"refused": refuses_remainders, "one-chunk": EVERYTHING},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own in_turn.",
            "in_turn is right for 1F1B only, drops backwards when the warm-up is longer than the forwards, or"
            " changes the lists it is handed",
            {"own-parts": EVERYTHING},
        ),
    ),
    builds_on=(ONE_F_ONE_B_ID,),
)
