"""The MLP made of the two layers: what it must show."""

from __future__ import annotations

from functools import partial

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_06.layers import (
    ANSWERS,
    COLUMN_ID,
    F_ID,
    G_ID,
    GIVEN_LATER,
    MLP,
    RIGHT_IN_GROUP,
    ROW_ID,
    THEIR_PART_OF,
    any_layout,
    layer_case,
    own_share,
    sum_of_gradient,
    sum_of_output,
)
from labkit.checks.lesson_06.twice import adds_to_gradients, adds_ways, same_when_frozen
from labkit.checks.lesson_06.unasked import (
    count_kept,
    leaves_nothing,
    leaves_x,
    sends_however_used,
    use_unasked,
)
from labkit.checks.shared.split import change_blocks, use_part, use_views
from labkit.checks.shared.split_judges import EVERYTHING, equals, gives_output, keeps_blocks, sends
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another


def _mlp_cases(seed: int) -> list[Case]:
    return [
        layer_case("5 features, 6 inside", "values", 2, [3], (5, 6), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (5, 6), seed),
        layer_case("all parts your own", "own-parts", 2, [3], (5, 6), seed),
        layer_case("3 features, 12 inside", "values", 4, [2, 3], (3, 12), seed),
        layer_case("a vector, biases of zeros", "values", 2, [], (5, 6), seed, zero_bias=True),
        layer_case("views", "layout", 2, [2, 3], (5, 6), seed),
        layer_case(
            "two groups of two, up without a bias",
            "subgroup",
            4,
            [3],
            (3, 4),
            seed,
            groups=[[0, 3], [1, 2]],
            biases=["down"],
        ),
        layer_case("groups of one", "values", 2, [3], (3, 4), seed, groups=[[0], [1]]),
        layer_case("beside an MLP of some ranks", "again", 4, [3], (3, 8), seed),
        layer_case("after some calls", "kept", 2, [256], (256, 512), seed),
    ]


EXERCISE = Exercise(
    "06.tensor-parallel-mlp",
    "The MLP: column, GeLU, row",
    ("TensorParallelMLP",),
    {
        "values": MLP.run(use_unasked),
        "again": MLP.run(partial(use_beside_another, other=MLP)),
        "own-shard": MLP.run(change_blocks),
        "own-parts": MLP.run(use_part),
        "layout": MLP.run(use_views),
        "subgroup": MLP.run(use_part),
        "kept": MLP.run(count_kept),
    },
    _mlp_cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            THEIR_PART_OF["output"],
            "GeLU was applied to partial sums: split `up` by columns, so that each rank has whole"
            " pre-activations",
            {"values": every(equals("output"), leaves_x), "again": gives_in_evaluation, "kept": gives_output},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "f is missing in front of the first layer",
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
            "a collective between the layers, or a gradient reduced once more",
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
            "the layer's parameters are not those of `up` and `down`",
            {"values": equals("trained")},
        ),
        Property(
            "communication",
            "mechanism",
            3,
            "One all-reduce in forward, one in backward, and nothing between the two layers.",
            "the output of `up` was gathered, only to be cut again for `down`",
            {"values": sends_however_used(sum_of_output, sum_of_gradient)},
            dict.fromkeys(("layout", "subgroup", "again"), sends(sum_of_output, sum_of_gradient)),
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            "Each rank keeps 1/t of both weights; only the bias of `down` is whole.",
            "the unsharded MLP was kept as an attribute",
            {"values": keeps_blocks, "again": leaves_the_whole, "kept": leaves_nothing},
            dict.fromkeys(("layout", "subgroup"), keeps_blocks),
        ),
        own_share(),
        any_layout(),
        Property(
            "subgroup",
            "robustness",
            1,
            "The MLP works in a group that is not the whole job, and where linear layers have no bias.",
            "the group was not handed on to the two layers, or each was taken to have a bias",
            {"subgroup": RIGHT_IN_GROUP},
        ),
        Property(
            "own-parts",
            "numbers",
            3,
            "The MLP built from your own f, g, column and row layers equals the unsharded one.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": EVERYTHING},
        ),
    ),
    builds_on=(F_ID, G_ID, COLUMN_ID, ROW_ID),
    forbids=GIVEN_LATER,
    hides=(*ANSWERS, "parallel"),
)
