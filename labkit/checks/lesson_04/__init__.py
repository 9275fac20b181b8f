"""What the exercises of lesson 04 must show: micro-batches, three schedules, an executor, and the bubble."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Property
from labkit.checks.lesson_04.executor import RUN
from labkit.checks.lesson_04.formulas import BUBBLE_FRACTION, PEAK_IN_FLIGHT
from labkit.checks.lesson_04.schedules import (
    Size,
    every_action_once,
    holds_at_most,
    runs_to_its_end,
    schedule_exercise,
    takes_as_long_as,
)
from labkit.checks.lesson_04.schedules import (
    forwards_first as has_forwards_first,
)
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank

# ---- 04.split-micro-batches


def split_case(name: str, seed: int, shapes: list[list[int]], **params: Any) -> Case:
    """shapes: [num_micro_batches, samples, *rest] each."""
    return Case(name, 1, {"shapes": shapes, **params}, seed)


def _split_cases(seed: int) -> list[Case]:
    return [
        split_case(
            "seven shapes",
            seed,
            [[4, 9, 3], [3, 7], [1, 5, 2], [5, 5, 1], [4, 8, 2, 3], [6, 15], [7, 9]],
            refused=[[6, 5], [0, 4]],
        )
    ]


def _split_inputs(case: Case, generator: torch.Generator) -> Inputs:
    shapes = enumerate(case.params["shapes"])
    return {f"batch{i}": torch.randn(shape[1:], generator=generator) for i, shape in shapes}


def _split_on_rank(rank: Rank) -> None:
    for index, (m, *_) in enumerate(rank.params["shapes"]):
        batch = rank.inputs[f"batch{index}"]
        parts = rank.student.split_micro_batches(batch, m)
        rank.fact(f"sizes{index}", [len(part) for part in parts])
        rank.answer(f"joined{index}", torch.cat(list(parts)))
        own = batch.untyped_storage().data_ptr()
        rank.fact(f"views{index}", all(p.untyped_storage().data_ptr() == own for p in parts))
    for m, samples in rank.params["refused"]:
        with rank.expect_error(f"{m} of {samples}"):
            rank.student.split_micro_batches(torch.zeros(samples, 2), m)


def _judge_split(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    tensors, facts = answers[0].tensors, answers[0].facts
    for index, (m, samples, *_) in enumerate(case.params["shapes"]):
        what = f"{samples} samples in {m} micro-batches"
        same = torch.equal(tensors[f"joined{index}"], inputs[f"batch{index}"])
        yield Finding("keeps-samples", same, f"{what}: joined again they are the batch", "they are not")
        sizes = facts[f"sizes{index}"]
        over = samples % m
        wanted = [samples // m + 1] * over + [samples // m] * (m - over)
        yield Finding("even-sizes", sizes == wanted, f"{what}: sizes {wanted}", f"sizes {sizes}")
        yield Finding("no-copy", facts[f"views{index}"], f"{what}: views of the batch", "a copy")
    for m, samples in case.params["refused"]:
        fact = facts[f"{m} of {samples}"]
        clear = "ValueError" in (fact.get("kinds") or []) and str(m) in fact["message"]
        said = f"{fact['raised']}: {fact['message']}" if fact["raised"] else "no error"
        yield Finding("refuses", clear, f"a ValueError that names {m}, for {m} of {samples} samples", said)


SPLIT = Exercise(
    "04.split-micro-batches",
    "Cut a batch into micro-batches",
    ("split_micro_batches",),
    (
        Property(
            "keeps-samples",
            "numbers",
            1,
            "Joined again, the micro-batches are the batch.",
            "the remainder is dropped, or the order is changed",
        ),
        Property(
            "even-sizes",
            "numbers",
            2,
            "There are m micro-batches and their sizes differ by at most one.",
            "torch.chunk and torch.split take a size, and may return fewer parts than you asked for",
        ),
        Property(
            "no-copy",
            "mechanism",
            1,
            "The micro-batches are views of the batch.",
            "clone, or torch.stack of single samples",
        ),
        Property(
            "refuses",
            "robustness",
            1,
            "More micro-batches than samples, or none, is a ValueError.",
            "an empty micro-batch has a mean loss of NaN",
        ),
    ),
    _split_cases,
    _split_inputs,
    _split_on_rank,
    _judge_split,
)

# ---- the three schedules

EVERY_ACTION = Property(
    "every-action-once",
    "numbers",
    2,
    "Each micro-batch goes forward and back once through each stage.",
    "the last micro-batches are left out of the cool-down, or the warm-up is longer than m when m < p",
)
NO_DEADLOCK = Property(
    "no-deadlock",
    "robustness",
    2,
    "A dry run of all ranks' lists reaches the end.",
    "a backward stands before its own forward, or two ranks order their micro-batches differently",
)


def schedule_case(name: str, seed: int, sizes: list[list[int]], **params: Any) -> Case:
    """sizes: [ranks, micro-batches] or [ranks, micro-batches, chunks] each."""
    return Case(name, 1, {"sizes": sizes, **params}, seed)


def refusing_case(name: str, seed: int, sizes: list[list[int]]) -> Case:
    """Sizes for which there is no schedule."""
    return Case(name, 1, {"refused": sizes}, seed, properties=("refuses-remainder",))


PLAYED = ("every-action-once", "no-deadlock", "makespan", "in-flight")


def _plain_cases(seed: int) -> list[Case]:
    return [
        schedule_case("m > p, m = p, m < p", seed, [[4, 8], [2, 5], [3, 7], [4, 4], [4, 2], [3, 1], [1, 3]])
    ]


def _interleaved_cases(seed: int) -> list[Case]:
    sizes = [[4, 8, 2], [2, 6, 3], [3, 3, 2], [2, 2, 2], [1, 4, 2]]
    played = schedule_case("two and three chunks", seed, sizes)
    return [
        Case(played.name, 1, played.params, seed, properties=PLAYED),
        refusing_case("a remainder", seed, [[4, 6, 2], [3, 2, 2]]),
        Case("your own in_turn", 1, {"sizes": [[2, 4, 2]]}, seed, properties=("own-parts",), own_parts=True),
    ]


def _makespan(says: str, usual_cause: str) -> Property:
    return Property("makespan", "numbers", 3, says, usual_cause)


GPIPE = schedule_exercise(
    "04.gpipe-schedule",
    "GPipe",
    ("gpipe_schedule",),
    lambda rank, r, size: rank.student.gpipe_schedule(r, size.ranks, size.micro_batches),
    {
        "every-action-once": every_action_once,
        "forwards-first": has_forwards_first,
        "makespan": takes_as_long_as,
        "no-deadlock": runs_to_its_end,
    },
    (
        EVERY_ACTION,
        Property(
            "forwards-first",
            "mechanism",
            1,
            "All forwards come before the first backward.",
            "forward and backward of one micro-batch stand together: that is the naive schedule",
        ),
        _makespan(
            "The batch takes (m+p-1)(t_f+t_b), whatever the backward costs.",
            "the order of the backwards is reversed on some stages and not on others",
        ),
        NO_DEADLOCK,
    ),
    _plain_cases,
)

ONE_F_ONE_B = schedule_exercise(
    "04.one-f-one-b-schedule",
    "1F1B",
    ("one_f_one_b_schedule", "in_turn"),
    lambda rank, r, size: rank.student.one_f_one_b_schedule(r, size.ranks, size.micro_batches),
    {
        "every-action-once": every_action_once,
        "makespan": takes_as_long_as,
        "in-flight": holds_at_most(lambda size, rank: min(size.micro_batches, size.ranks - rank)),
        "no-deadlock": runs_to_its_end,
    },
    (
        EVERY_ACTION,
        _makespan(
            "The batch takes as long as with GPipe: (m+p-1)(t_f+t_b).",
            "the warm-up is too short: stage r needs p-r-1 forwards before its first pair",
        ),
        Property(
            "in-flight",
            "mechanism",
            3,
            "Stage r never holds more than min(m, p-r) micro-batches.",
            "the warm-up is too long, or counts from the wrong end: the last stage has none",
        ),
        NO_DEADLOCK,
    ),
    _plain_cases,
)


def most_chunks_held(size: Size, rank: int) -> int:
    """Megatron's warm-up and one more: 2(p-r-1) + (v-1)p + 1 chunks, or all there are."""
    warm_up = 2 * (size.ranks - rank - 1) + (size.chunks - 1) * size.ranks
    return min(size.chunks * size.micro_batches, warm_up + 1)


INTERLEAVED = schedule_exercise(
    "04.interleaved-schedule",
    "Interleaved 1F1B",
    ("interleaved_schedule",),
    lambda rank, r, size: rank.student.interleaved_schedule(r, size.ranks, size.micro_batches, size.chunks),
    {
        "every-action-once": every_action_once,
        "makespan": takes_as_long_as,
        "in-flight": holds_at_most(most_chunks_held),
        "no-deadlock": runs_to_its_end,
    },
    (
        EVERY_ACTION,
        _makespan(
            "The bubble is v times smaller: the batch takes m(t_f+t_b) + (p-1)(t_f+t_b)/v.",
            "chunks are not taken in groups of p micro-batches, or the warm-up is the plain one",
        ),
        Property(
            "in-flight",
            "mechanism",
            3,
            "Rank r holds at most 2(p-r-1) + (v-1)p + 1 chunks.",
            "the warm-up is longer than it need be",
        ),
        NO_DEADLOCK,
        Property(
            "refuses-remainder",
            "robustness",
            1,
            "When m is not a multiple of the ranks, a ValueError names both numbers.",
            "the last group is not full: its chunks would wait for micro-batches that do not exist",
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own in_turn.",
            "in_turn is right for 1F1B only, or changes the lists it is handed",
        ),
    ),
    _interleaved_cases,
    builds_on=("04.one-f-one-b-schedule",),
)

EXERCISES = (SPLIT, GPIPE, ONE_F_ONE_B, PEAK_IN_FLIGHT, INTERLEAVED, BUBBLE_FRACTION, RUN)
