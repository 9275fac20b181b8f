"""What each exercise of lesson 06 must show: f and g, the two linear layers, and the MLP."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_06.layers import (
    COLUMN,
    GATHERED,
    MLP,
    OUTPUT_IN_GROUP,
    ROW,
    gather_of_output,
    layer_case,
    nothing,
    sizes_refused,
    sum_of_gradient,
    sum_of_output,
)
from labkit.checks.lesson_06.operators import (
    adds,
    callers_tensors_kept,
    hands_on,
    one_all_reduce,
    operator_case,
    used,
)
from labkit.checks.shared.beside import STEPS, is_refused, stays_in_group
from labkit.checks.shared.split import (
    EVERYTHING,
    change_blocks,
    equals,
    impossible,
    keeps_blocks,
    own_block_decides,
    sends,
    use_part,
)


def _operator_cases(seed: int) -> list[Case]:
    return [
        operator_case("a matrix", "values", 2, [3, 5], seed),
        operator_case("a batch of sequences", "values", 4, [2, 3, 5], seed),
        operator_case("tensors that are not contiguous", "layout", 2, [3, 4], seed),
        operator_case("two groups of two", "subgroup", 4, [5], seed, groups=[[0, 3], [1, 2]]),
        operator_case("groups of one", "values", 2, [4], seed, groups=[[0], [1]]),
    ]


def _column_cases(seed: int) -> list[Case]:
    return [
        layer_case("5 features to 6", "values", 2, [3], (5, 6), seed),
        layer_case("gathered output", "gather", 2, [3], (5, 4), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (5, 6), seed),
        layer_case("other blocks changed, gathered", "gather-own-shard", 2, [3], (5, 6), seed),
        layer_case("7 outputs", "uneven", 2, [3], (4, 7), seed, uneven=7),
        layer_case("3 features to 8", "values", 4, [2, 3], (3, 8), seed),
        layer_case("gathered output in order", "gather", 4, [2, 3], (3, 8), seed),
        layer_case("two groups of two", "subgroup", 4, [3], (3, 4), seed, groups=[[0, 3], [1, 2]]),
        layer_case(
            "gathered in two groups", "gather-subgroup", 4, [3], (3, 4), seed, groups=[[0, 3], [1, 2]]
        ),
        layer_case("groups of one", "values", 2, [3], (4, 3), seed, groups=[[0], [1]]),
    ]


def _row_cases(seed: int) -> list[Case]:
    return [
        layer_case("6 features to 5", "values", 2, [3], (6, 5), seed, bias=False),
        layer_case("with a bias", "bias", 2, [3], (6, 5), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (6, 5), seed, bias=False),
        layer_case("7 inputs", "uneven", 2, [3], (7, 4), seed, uneven=7),
        layer_case("8 features to 3", "values", 4, [2, 3], (8, 3), seed, bias=False),
        layer_case("with a bias on more ranks", "bias", 4, [2, 3], (8, 3), seed),
        layer_case(
            "two groups of two", "subgroup", 4, [3], (4, 3), seed, bias=False, groups=[[0, 3], [1, 2]]
        ),
        layer_case("groups of one", "values", 2, [3], (3, 4), seed, bias=False, groups=[[0], [1]]),
    ]


def _mlp_cases(seed: int) -> list[Case]:
    return [
        layer_case("5 features, 6 inside", "values", 2, [3], (5, 6), seed),
        layer_case("other blocks changed", "own-shard", 2, [3], (5, 6), seed),
        layer_case("all parts your own", "own-parts", 2, [3], (5, 6), seed),
        layer_case("3 features, 12 inside", "values", 4, [2, 3], (3, 12), seed),
        layer_case("two groups of two", "subgroup", 4, [3], (3, 4), seed, groups=[[0, 3], [1, 2]]),
        layer_case("groups of one", "values", 2, [3], (3, 4), seed, groups=[[0], [1]]),
    ]


F_ID, G_ID = "06.copy-to-tensor-parallel", "06.reduce-from-tensor-parallel"
COLUMN_ID, ROW_ID = "06.column-parallel-linear", "06.row-parallel-linear"
GIVEN_LATER = tuple(
    f"labkit.tensor_parallel.{name}"
    for name in ("copy_to_ranks", "sum_over_ranks", "column_parallel", "row_parallel")
)
ANSWERS = ("tensor_parallel.py",)

THEIR_PART_OF = {
    "output": "Each rank's output is its part of the unsharded layer's output.",
    "input_grad": "Each rank's gradient of x is its part of the unsharded layer's.",
    "grad": "Each rank's parameter gradients are its blocks of the unsharded layer's.",
    "trained": f"After {STEPS} steps of SGD, each rank holds its blocks of the trained layer.",
}

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
            {"values": hands_on("output", "x")},
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
        ),
        Property(
            "callers-tensors",
            "robustness",
            1,
            "x and grad_output still hold what they held before.",
            "dist.all_reduce works in place: give it a copy",
            {"values": callers_tensors_kept},
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
            {"values": adds("output", "x")},
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
        ),
        Property(
            "callers-tensors",
            "robustness",
            1,
            "x and grad_output still hold what they held before.",
            "dist.all_reduce works in place: give it a copy of x",
            {"values": callers_tensors_kept},
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

COLUMN_EXERCISE = Exercise(
    COLUMN_ID,
    "A linear layer split by output features",
    ("ColumnParallelLinear",),
    {
        "values": COLUMN.run(use_part),
        "gather": GATHERED.run(use_part),
        "own-shard": COLUMN.run(change_blocks),
        "gather-own-shard": GATHERED.run(change_blocks),
        "uneven": impossible(COLUMN),
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
            {"values": equals("output")},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "f is missing: without it a rank has the gradient through its own columns only",
            {"values": equals("input_grad")},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            THEIR_PART_OF["grad"],
            "the weight or bias was detached, or its gradient scaled by t",
            {"values": equals("grad")},
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
            {"values": sends(nothing, sum_of_gradient)},
        ),
        Property(
            "stored-shards",
            "mechanism",
            3,
            "Each rank keeps 1/t of the weight and of the bias, and nothing else stays in memory.",
            "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was kept",
            {"values": keeps_blocks},
        ),
        Property(
            "own-shard-only",
            "mechanism",
            2,
            "A rank computes with its own block and never reads another's.",
            "the product was computed with the full weight and cut afterwards",
            {"own-shard": own_block_decides},
        ),
        Property(
            "gather-output",
            "numbers",
            3,
            "With gather_output=True every rank has the whole output, at the price of one all-gather.",
            "blocks joined along dim 0 or in the wrong order; or the backward of the gather adds what the"
            " ranks have in common, where each should take its own slice",
            {
                "gather": every(
                    equals("output", "input_grad", "grad"), sends(gather_of_output, sum_of_gradient)
                ),
                "gather-own-shard": own_block_decides,
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
        Property(
            "subgroup",
            "robustness",
            1,
            "The layer works in a group that is not the whole job.",
            "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            {"subgroup": OUTPUT_IN_GROUP, "gather-subgroup": OUTPUT_IN_GROUP},
        ),
    ),
    builds_on=(F_ID, G_ID),
    forbids=GIVEN_LATER,
    hides=ANSWERS,
)

ROW_EXERCISE = Exercise(
    ROW_ID,
    "A linear layer split by input features",
    ("RowParallelLinear",),
    {
        "values": ROW.run(use_part),
        "bias": ROW.run(use_part),
        "own-shard": ROW.run(change_blocks),
        "uneven": impossible(ROW),
        "subgroup": ROW.run(use_part),
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
            {"values": equals("output")},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "the gradient was reduced in backward too: it is whole on every rank",
            {"values": equals("input_grad")},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            THEIR_PART_OF["grad"],
            "the gradient of the output was summed or divided over the ranks",
            {"values": equals("grad")},
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
            {"values": sends(sum_of_output, nothing)},
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            "Each rank keeps 1/t of the weight, and nothing else stays in memory.",
            "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was kept",
            {"values": keeps_blocks},
        ),
        Property(
            "own-shard-only",
            "mechanism",
            2,
            "A rank computes with its own block and never reads another's.",
            "the product was computed with the full weight",
            {"own-shard": own_block_decides},
        ),
        Property(
            "uneven-sizes",
            "robustness",
            1,
            "Sizes that do not divide are refused with a ValueError on every rank.",
            "in_features // t drops the remainder without a word",
            {"uneven": is_refused("refusal", "ValueError", names=sizes_refused)},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The layer works in a group that is not the whole job.",
            "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            {"subgroup": OUTPUT_IN_GROUP},
        ),
    ),
    builds_on=(F_ID, G_ID),
    forbids=GIVEN_LATER,
    hides=ANSWERS,
)

MLP_EXERCISE = Exercise(
    "06.tensor-parallel-mlp",
    "The MLP: column, GeLU, row",
    ("TensorParallelMLP",),
    {
        "values": MLP.run(use_part),
        "own-shard": MLP.run(change_blocks),
        "own-parts": MLP.run(use_part),
        "subgroup": MLP.run(use_part),
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
            {"values": equals("output")},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            THEIR_PART_OF["input_grad"],
            "f is missing in front of the first layer",
            {"values": equals("input_grad")},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            THEIR_PART_OF["grad"],
            "a collective between the layers, or a gradient reduced once more",
            {"values": equals("grad")},
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
            {"values": sends(sum_of_output, sum_of_gradient)},
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            "Each rank keeps 1/t of both weights; only the bias of `down` is whole.",
            "the unsharded MLP was kept as an attribute",
            {"values": keeps_blocks},
        ),
        Property(
            "own-shard-only",
            "mechanism",
            2,
            "A rank computes with its own blocks and never reads another's.",
            "the unsharded MLP was run, in whole or in part",
            {"own-shard": own_block_decides},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The MLP works in a group that is not the whole job.",
            "the group was not handed on to the two layers",
            {"subgroup": OUTPUT_IN_GROUP},
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
    hides=ANSWERS,
)

EXERCISES = [F_EXERCISE, G_EXERCISE, COLUMN_EXERCISE, ROW_EXERCISE, MLP_EXERCISE]
