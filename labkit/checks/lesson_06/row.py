"""A linear layer split by input features: what it must show."""

from __future__ import annotations

from functools import partial

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_06.layers import (
    ANSWERS,
    F_ID,
    G_ID,
    GIVEN_LATER,
    RIGHT_IN_GROUP,
    ROW,
    ROW_ID,
    THEIR_PART_OF,
    any_layout,
    layer_case,
    nothing,
    own_share,
    sizes_refused,
    sum_of_output,
)
from labkit.checks.lesson_06.twice import adds_to_gradients, adds_ways, same_when_frozen
from labkit.checks.lesson_06.unasked import (
    count_kept,
    keeps_its_input,
    leaves_x,
    sends_however_used,
    use_unasked,
)
from labkit.checks.shared.beside import is_refused
from labkit.checks.shared.split import change_blocks, impossible, use_part, use_views
from labkit.checks.shared.split_judges import equals, gives_output, keeps_blocks, sends
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another


def _row_cases(seed: int) -> list[Case]:
    return [
        layer_case("6 features to 5", "values", 2, [3], (6, 5), seed, bias=False),
        layer_case("with a bias", "bias", 2, [3], (6, 5), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (6, 5), seed, bias=False),
        layer_case("7 inputs", "uneven", 2, [3], (7, 4), seed, uneven=7),
        layer_case("6 inputs on four ranks", "uneven", 4, [3], (6, 4), seed, uneven=6),
        layer_case("8 features to 3", "values", 4, [2, 3], (8, 3), seed, bias=False),
        layer_case("a vector", "values", 2, [], (6, 5), seed, bias=False),
        layer_case("views", "layout", 2, [2, 3], (6, 5), seed),
        layer_case("a bias of zeros on more ranks", "bias", 4, [2, 3], (8, 3), seed, zero_bias=True),
        layer_case(
            "two groups of two", "subgroup", 4, [3], (4, 3), seed, bias=False, groups=[[0, 3], [1, 2]]
        ),
        layer_case("groups of one", "values", 2, [3], (3, 4), seed, bias=False, groups=[[0], [1]]),
        layer_case("beside a layer of some ranks", "again", 4, [3], (8, 3), seed),
        layer_case("kept for backward", "kept", 2, [32], (32, 4096), seed, bias=False),
    ]


EXERCISE = Exercise(
    ROW_ID,
    "A linear layer split by input features",
    ("RowParallelLinear",),
    {
        "values": ROW.run(use_unasked),
        "again": ROW.run(partial(use_beside_another, other=ROW)),
        "bias": ROW.run(use_unasked),
        "own-shard": ROW.run(change_blocks),
        "uneven": impossible(ROW),
        "layout": ROW.run(use_views),
        "subgroup": ROW.run(use_part),
        "kept": ROW.run(count_kept),
    },
    _row_cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            THEIR_PART_OF["output"],
            "g is missing, so that every rank has only its partial sum; or the wrong dimension was cut (input"
            " features are dim 1 of the weight)",
            {
                "values": every(equals("output"), leaves_x),
                "again": gives_in_evaluation,
                "kept": gives_output,
            },
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "the gradient was reduced in backward too: it is whole on every rank",
            {
                "values": every(equals("input_grad"), adds_ways, same_when_frozen),
                "again": equals("input_grad"),
                "kept": equals("input_grad"),
            },
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            THEIR_PART_OF["grad"],
            "the gradient of the output was summed or divided over the ranks",
            {
                "values": every(equals("grad"), adds_to_gradients),
                "again": equals("grad"),
                "kept": equals("grad"),
            },
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            THEIR_PART_OF["trained"],
            "the block is not an nn.Parameter, or forward computes from something else than self.weight",
            {"values": equals("trained")},
        ),
        Property(
            "bias-once",
            "numbers",
            3,
            "The bias is added once, after the sum, and learns as in the unsharded layer.",
            "the bias was added on every rank before the sum (t times), or divided by t to hide that",
            {"bias": equals("output", "grad.bias", "trained.bias")},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Forward is one all-reduce of the output; nothing is sent in backward.",
            "x was gathered first, or the gradient was reduced as well",
            dict.fromkeys(("values", "bias"), sends_however_used(sum_of_output, nothing)),
            dict.fromkeys(("layout", "subgroup", "again"), sends(sum_of_output, nothing)),
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            "Each rank keeps 1/t of the weight and a copy of the bias, and nothing else stays in memory.",
            "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was kept",
            {
                "values": keeps_blocks,
                "bias": keeps_blocks,
                "again": leaves_the_whole,
                "kept": keeps_its_input,
            },
            dict.fromkeys(("layout", "subgroup"), keeps_blocks),
        ),
        own_share(),
        Property(
            "uneven-sizes",
            "robustness",
            1,
            "Sizes that do not divide are refused with a ValueError on every rank.",
            "in_features // t drops the remainder without a word",
            {"uneven": is_refused("refusal", "ValueError", names=sizes_refused)},
        ),
        any_layout(),
        Property(
            "subgroup",
            "robustness",
            1,
            "The layer works in a group that is not the whole job.",
            "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            {"subgroup": RIGHT_IN_GROUP},
        ),
    ),
    builds_on=(F_ID, G_ID),
    forbids=GIVEN_LATER,
    hides=(*ANSWERS, "parallel"),
)
