"""f and g, two functions that do to values what the other does to gradients: what they must show."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_06.layers import ANSWERS, F_ID, G_ID, GIVEN_LATER
from labkit.checks.lesson_06.operators import (
    adds,
    hands_on,
    one_all_reduce,
    operator_case,
    tensors_kept,
    used,
)
from labkit.checks.shared.beside import stays_in_group
from labkit.checks.shared.surroundings import keeps_nothing


def _operator_cases(seed: int) -> list[Case]:
    return [
        operator_case("a matrix", "values", 2, [3, 5], seed, late=[1]),
        operator_case("a batch of sequences", "values", 4, [2, 3, 5], seed),
        operator_case("a single number", "values", 2, [], seed),
        operator_case("tensors that are not contiguous", "layout", 2, [3, 4], seed),
        operator_case("a view on one rank alone", "layout", 2, [3, 4], seed, views_on=1),
        operator_case("two groups of two", "subgroup", 4, [5], seed, groups=[[0, 3], [1, 2]]),
        operator_case("groups of one", "values", 2, [4], seed, groups=[[0], [1]]),
        operator_case("zeros on one rank", "values", 2, [3, 2], seed, zeros_on=1),
        operator_case("kept for backward", "kept", 2, [], seed),
    ]


F_EXERCISE = Exercise(
    F_ID,
    "f: the same in forward, a sum in backward",
    ("CopyToTensorParallel",),
    used("CopyToTensorParallel"),
    _operator_cases,
    (
        Property(
            "forward-values",
            "numbers",
            1,
            "Forward hands x on as it is.",
            "x was reduced in forward: every rank has all of x already, a sum makes it t times too large",
            {"values": every(hands_on("output", "x"), hands_on("output alone", "x"))},
        ),
        Property(
            "input-gradients",
            "numbers",
            3,
            "Backward returns the sum of the ranks' gradients.",
            "the gradient went back as it came: each rank knows only what its own columns contribute",
            {"values": adds("input_grad", "grad_output")},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Nothing is sent in forward; backward is one all-reduce of the gradient.",
            "an all_reduce in forward, none or two in backward, or an all_gather and a sum of your own",
            {"values": one_all_reduce("backward")},
            dict.fromkeys(("layout", "subgroup"), one_all_reduce("backward")),
        ),
        Property(
            "callers-tensors",
            "robustness",
            1,
            "x and grad_output still hold what they held before, results stay when it is used again, and"
            " nothing is kept for backward.",
            "dist.all_reduce works in place: give it a copy",
            {"values": tensors_kept(hands_on, adds), "kept": keeps_nothing("kept_bytes")},
        ),
        Property(
            "any-layout",
            "robustness",
            1,
            "Tensors that are not contiguous work.",
            "dist.all_reduce wants contiguous memory, and the gradient of a sum() is an expanded scalar",
            {"layout": every(hands_on("output", "x"), adds("input_grad", "grad_output"))},
        ),
        Property(
            "subgroup",
            "robustness",
            2,
            "The sum is over the group that was handed over, and no other rank.",
            "group= is missing in the call, so all ranks of the job took part",
            {"subgroup": every(adds("input_grad", "grad_output"), stays_in_group)},
        ),
    ),
    forbids=GIVEN_LATER,
    hides=ANSWERS,
)

G_EXERCISE = Exercise(
    G_ID,
    "g: a sum in forward, the same in backward",
    ("ReduceFromTensorParallel",),
    used("ReduceFromTensorParallel"),
    _operator_cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "Forward returns the sum of the ranks' x.",
            "the partial results were not added, were averaged, or went through fewer digits",
            {"values": every(adds("output", "x"), adds("output alone", "x"))},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            "Backward hands the gradient on as it is.",
            "the gradient was reduced as well: every rank has all of it already, a sum makes it t times"
            " too large",
            {"values": hands_on("input_grad", "grad_output")},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Forward is one all-reduce of x; nothing is sent in backward.",
            "an all_reduce in backward, two in forward, or an all_gather and a sum of your own",
            {"values": one_all_reduce("forward")},
            dict.fromkeys(("layout", "subgroup"), one_all_reduce("forward")),
        ),
        Property(
            "callers-tensors",
            "robustness",
            1,
            "x and grad_output still hold what they held before, results stay when it is used again, and"
            " nothing is kept for backward.",
            "dist.all_reduce works in place: give it a copy of x",
            {"values": tensors_kept(adds, hands_on), "kept": keeps_nothing("kept_bytes")},
        ),
        Property(
            "any-layout",
            "robustness",
            1,
            "Tensors that are not contiguous work.",
            "dist.all_reduce wants contiguous memory: clone(memory_format=torch.contiguous_format)",
            {"layout": every(adds("output", "x"), hands_on("input_grad", "grad_output"))},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The sum is over the group that was handed over, and no other rank.",
            "group= is missing in the call, so all ranks of the job took part",
            {"subgroup": every(adds("output", "x"), stays_in_group)},
        ),
    ),
    forbids=GIVEN_LATER,
    hides=ANSWERS,
)
