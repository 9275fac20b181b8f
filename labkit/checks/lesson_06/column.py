"""A linear layer split by output features: what it must show."""

from __future__ import annotations

from functools import partial

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_06.layers import (
    ANSWERS,
    COLUMN,
    COLUMN_ID,
    F_ID,
    G_ID,
    GATHERED,
    GIVEN_LATER,
    RIGHT_IN_GROUP,
    THEIR_PART_OF,
    any_layout,
    gather_of_output,
    layer_case,
    nothing,
    own_share,
    sizes_refused,
    sum_of_gradient,
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
from labkit.checks.shared.split_judges import equals, gives_output, keeps_blocks, own_block_decides, sends
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another


def _column_cases(seed: int) -> list[Case]:
    return [
        layer_case("5 features to 6", "values", 2, [3], (5, 6), seed),
        layer_case("gathered output", "gather", 2, [3], (5, 4), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (5, 6), seed),
        layer_case("other blocks changed, gathered", "gather-own-shard", 2, [3], (5, 6), seed),
        layer_case("7 outputs", "uneven", 2, [3], (4, 7), seed, uneven=7),
        layer_case("6 outputs on four ranks", "uneven", 4, [3], (4, 6), seed, uneven=6),
        layer_case("3 features to 8", "values", 4, [2, 3], (3, 8), seed),
        layer_case("gathered output in order", "gather", 4, [2, 3], (3, 8), seed),
        layer_case("a vector, a bias of zeros", "values", 2, [], (5, 6), seed, zero_bias=True),
        layer_case("views", "layout", 2, [2, 3], (5, 6), seed),
        layer_case("views, gathered", "gather-layout", 2, [2, 3], (5, 6), seed),
        layer_case("two groups of two", "subgroup", 4, [3], (3, 4), seed, groups=[[0, 3], [1, 2]]),
        layer_case(
            "gathered in two groups", "gather-subgroup", 4, [3], (3, 4), seed, groups=[[0, 3], [1, 2]]
        ),
        layer_case("groups of one", "values", 2, [3], (4, 3), seed, groups=[[0], [1]]),
        layer_case("beside a layer of some ranks", "again", 4, [3], (3, 8), seed),
        layer_case("gathered, beside one", "gather-again", 4, [3], (3, 8), seed),
        layer_case("kept for backward", "gather-kept", 2, [32], (32, 4096), seed),
    ]


EXERCISE = Exercise(
    COLUMN_ID,
    "A linear layer split by output features",
    ("ColumnParallelLinear",),
    {
        "values": COLUMN.run(use_unasked),
        "again": COLUMN.run(partial(use_beside_another, other=GATHERED)),
        "gather": GATHERED.run(use_unasked),
        "own-shard": COLUMN.run(change_blocks),
        "gather-own-shard": GATHERED.run(change_blocks),
        "gather-again": GATHERED.run(partial(use_beside_another, other=COLUMN)),
        "gather-kept": GATHERED.run(count_kept),
        "uneven": impossible(COLUMN),
        "layout": COLUMN.run(use_views),
        "gather-layout": GATHERED.run(use_views),
        "subgroup": COLUMN.run(use_part),
        "gather-subgroup": GATHERED.run(use_part),
    },
    _column_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            THEIR_PART_OF["output"],
            "the wrong dimension was cut (weight is [out, in]: output features are"
            " dim 0), or the bias was not cut with it",
            {"values": every(equals("output"), leaves_x), "again": gives_in_evaluation},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "f is missing: without it a rank has the gradient through its own columns only",
            {
                "values": every(equals("input_grad"), adds_ways, same_when_frozen),
                "again": equals("input_grad"),
            },
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            THEIR_PART_OF["grad"],
            "the weight or bias was detached, or its gradient scaled by t",
            {"values": every(equals("grad"), adds_to_gradients), "again": equals("grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            THEIR_PART_OF["trained"],
            "the blocks are not nn.Parameters, or forward computes from something else than self.weight and"
            " self.bias",
            {"values": equals("trained")},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Nothing is sent in forward; backward is one all-reduce of x's gradient.",
            "the output was gathered though nobody asked, or f was applied to something other than x",
            {"values": sends_however_used(nothing, sum_of_gradient)},
            dict.fromkeys(("layout", "subgroup", "again"), sends(nothing, sum_of_gradient)),
        ),
        Property(
            "stored-shards",
            "mechanism",
            3,
            "Each rank keeps 1/t of the weight and of the bias, and nothing else stays in memory.",
            "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was kept",
            {"values": keeps_blocks, "again": leaves_the_whole},
            dict.fromkeys(("layout", "subgroup"), keeps_blocks),
        ),
        own_share(),
        Property(
            "gather-output",
            "numbers",
            3,
            "With gather_output=True every rank has the whole output, at the price of one all-gather.",
            "blocks joined along dim 0 or in the wrong order; or the backward of the gather adds what the"
            " ranks have in common, where each should take its own slice",
            {
                "gather": every(
                    equals("output", "input_grad", "grad"),
                    adds_ways,
                    same_when_frozen,
                    sends_however_used(gather_of_output, sum_of_gradient),
                    leaves_x,
                ),
                "gather-own-shard": own_block_decides,
                "gather-again": every(
                    gives_in_evaluation,
                    equals("input_grad", "grad"),
                    sends(gather_of_output, sum_of_gradient),
                ),
                "gather-kept": every(keeps_its_input, gives_output, equals("input_grad", "grad")),
            },
        ),
        Property(
            "uneven-sizes",
            "robustness",
            1,
            "Sizes that do not divide are refused with a ValueError on every rank.",
            "out_features // t drops the remainder without a word",
            {"uneven": is_refused("refusal", "ValueError", names=sizes_refused)},
        ),
        any_layout("layout", "gather-layout"),
        Property(
            "subgroup",
            "robustness",
            1,
            "The layer works in a group that is not the whole job.",
            "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            {"subgroup": RIGHT_IN_GROUP, "gather-subgroup": RIGHT_IN_GROUP},
        ),
    ),
    builds_on=(F_ID, G_ID),
    forbids=GIVEN_LATER,
    hides=(*ANSWERS, "parallel"),
)
