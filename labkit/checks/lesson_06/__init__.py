"""What each exercise of lesson 06 must show: f and g, the two linear layers, and the MLP."""

from __future__ import annotations

from dataclasses import replace

from labkit.checks.exercise import Case, Property, mechanism, numbers, robustness
from labkit.checks.lesson_06.layers import COLUMN, MLP, ROW, layer_case, layer_exercise
from labkit.checks.lesson_06.operators import operator_case, operator_exercise
from labkit.checks.shared.sharded_layer import STEPS


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


def _value_properties(points: dict[str, int], causes: dict[str, str]) -> list[Property]:
    """The four properties that compare numbers with the unsharded layer."""
    says = {
        "forward-values": "Each rank's output is its part of the unsharded layer's output.",
        "input-gradients": "Each rank's gradient of x is its part of the unsharded layer's.",
        "parameter-gradients": "Each rank's parameter gradients are its blocks of the unsharded layer's.",
        "trained-weights": f"After {STEPS} steps of SGD, each rank holds its blocks of the trained layer.",
    }
    return [numbers(name, points[name], says[name], causes.get(name, "")) for name in points]


GIVEN_LATER = tuple(
    f"labkit.tensor_parallel.{name}"
    for name in ("copy_to_ranks", "sum_over_ranks", "column_parallel", "row_parallel")
)
_EXERCISES = [
    operator_exercise(
        F_ID,
        "f: the same in forward, a sum in backward",
        "CopyToTensorParallel",
        "backward",
        _operator_cases,
        [
            numbers(
                "forward-values",
                1,
                "Forward hands x on as it is.",
                "x was reduced in forward: every rank has all of x already, a sum makes it t times too large",
            ),
            numbers(
                "input-gradients",
                3,
                "Backward returns the sum of the ranks' gradients.",
                "the gradient went back as it came: each rank knows only what its own columns contribute",
            ),
            mechanism(
                "communication",
                2,
                "Nothing is sent in forward; backward is one all-reduce of the gradient.",
                "an all_reduce in forward, none or two in backward, or an all_gather and a sum of your own",
            ),
            robustness(
                "callers-tensors",
                1,
                "x and grad_output still hold what they held before.",
                "dist.all_reduce works in place: give it a copy",
            ),
            robustness(
                "any-layout",
                1,
                "Tensors that are not contiguous work.",
                "dist.all_reduce wants contiguous memory, and the gradient of a sum() is an expanded scalar",
            ),
            robustness(
                "subgroup",
                2,
                "The sum is over the group that was handed over, and no other rank.",
                "group= is missing in the call, so all ranks of the job took part",
            ),
        ],
    ),
    operator_exercise(
        G_ID,
        "g: a sum in forward, the same in backward",
        "ReduceFromTensorParallel",
        "forward",
        _operator_cases,
        [
            numbers(
                "forward-values",
                3,
                "Forward returns the sum of the ranks' x.",
                "the partial results were not added, were averaged, or went through fewer digits",
            ),
            numbers(
                "input-gradients",
                2,
                "Backward hands the gradient on as it is.",
                "the gradient was reduced as well: every rank has all of it already, a sum makes it t times"
                " too large",
            ),
            mechanism(
                "communication",
                2,
                "Forward is one all-reduce of x; nothing is sent in backward.",
                "an all_reduce in backward, two in forward, or an all_gather and a sum of your own",
            ),
            robustness(
                "callers-tensors",
                1,
                "x and grad_output still hold what they held before.",
                "dist.all_reduce works in place: give it a copy of x",
            ),
            robustness(
                "any-layout",
                1,
                "Tensors that are not contiguous work.",
                "dist.all_reduce wants contiguous memory: clone(memory_format=torch.contiguous_format)",
            ),
            robustness(
                "subgroup",
                1,
                "The sum is over the group that was handed over, and no other rank.",
                "group= is missing in the call, so all ranks of the job took part",
            ),
        ],
    ),
    layer_exercise(
        "06.column-parallel-linear",
        "A linear layer split by output features",
        "ColumnParallelLinear",
        COLUMN,
        _column_cases,
        [F_ID, G_ID],
        [
            *_value_properties(
                {
                    "forward-values": 2,
                    "input-gradients": 2,
                    "parameter-gradients": 2,
                    "trained-weights": 2,
                },
                {
                    "forward-values": "the wrong dimension was cut (weight is [out, in]: output features are"
                    " dim 0), or the bias was not cut with it",
                    "input-gradients": "f is missing: without it a rank has the gradient through its own"
                    " columns only",
                    "parameter-gradients": "the weight or bias was detached, or its gradient scaled by t",
                    "trained-weights": "the blocks are not nn.Parameters, or forward computes from"
                    " something else than self.weight and self.bias",
                },
            ),
            mechanism(
                "communication",
                2,
                "Nothing is sent in forward; backward is one all-reduce of x's gradient.",
                "the output was gathered though nobody asked, or f was applied to something other than x",
            ),
            mechanism(
                "stored-shards",
                3,
                "Each rank keeps 1/t of the weight and of the bias, and nothing else stays in memory.",
                "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was"
                " kept",
            ),
            mechanism(
                "own-shard-only",
                2,
                "A rank computes with its own block and never reads another's.",
                "the product was computed with the full weight and cut afterwards",
            ),
            numbers(
                "gather-output",
                3,
                "With gather_output=True every rank has the whole output, at the price of one all-gather.",
                "blocks joined along dim 0 or in the wrong order; or the backward of the gather adds what the"
                " ranks have in common, where each should take its own slice",
            ),
            robustness(
                "uneven-sizes",
                1,
                "Sizes that do not divide are refused with a ValueError on every rank.",
                "out_features // t drops the remainder without a word",
            ),
            robustness(
                "subgroup",
                1,
                "The layer works in a group that is not the whole job.",
                "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            ),
        ],
    ),
    layer_exercise(
        "06.row-parallel-linear",
        "A linear layer split by input features",
        "RowParallelLinear",
        ROW,
        _row_cases,
        [F_ID, G_ID],
        [
            *_value_properties(
                {
                    "forward-values": 3,
                    "input-gradients": 2,
                    "parameter-gradients": 2,
                    "trained-weights": 2,
                },
                {
                    "forward-values": "g is missing, so that every rank has only its partial sum; or the"
                    " wrong dimension was cut (input features are dim 1 of the weight)",
                    "input-gradients": "the gradient was reduced in backward too: it is whole on every rank",
                    "parameter-gradients": "the gradient of the output was summed or divided over the ranks",
                    "trained-weights": "the block is not an nn.Parameter, or forward computes from"
                    " something else than self.weight",
                },
            ),
            numbers(
                "bias-once",
                3,
                "The bias is added once, after the sum, and learns as in the unsharded layer.",
                "the bias was added on every rank before the sum (t times), or divided by t to hide that",
            ),
            mechanism(
                "communication",
                2,
                "Forward is one all-reduce of the output; nothing is sent in backward.",
                "x was gathered first, or the gradient was reduced as well",
            ),
            mechanism(
                "stored-shards",
                2,
                "Each rank keeps 1/t of the weight, and nothing else stays in memory.",
                "a slice is a view that keeps the whole tensor in memory: clone() it; or the full layer was"
                " kept",
            ),
            mechanism(
                "own-shard-only",
                2,
                "A rank computes with its own block and never reads another's.",
                "the product was computed with the full weight",
            ),
            robustness(
                "uneven-sizes",
                1,
                "Sizes that do not divide are refused with a ValueError on every rank.",
                "in_features // t drops the remainder without a word",
            ),
            robustness(
                "subgroup",
                1,
                "The layer works in a group that is not the whole job.",
                "dist.get_rank() or get_world_size() without the group, or a collective without group=",
            ),
        ],
    ),
    layer_exercise(
        "06.tensor-parallel-mlp",
        "The MLP: column, GeLU, row",
        "TensorParallelMLP",
        MLP,
        _mlp_cases,
        [F_ID, G_ID, "06.column-parallel-linear", "06.row-parallel-linear"],
        [
            *_value_properties(
                {
                    "forward-values": 3,
                    "input-gradients": 2,
                    "parameter-gradients": 2,
                    "trained-weights": 2,
                },
                {
                    "forward-values": "GeLU was applied to partial sums: split `up` by columns, so that each"
                    " rank has whole pre-activations",
                    "input-gradients": "f is missing in front of the first layer",
                    "parameter-gradients": "a collective between the layers, or a gradient reduced once more",
                    "trained-weights": "the layer's parameters are not those of `up` and `down`",
                },
            ),
            mechanism(
                "communication",
                3,
                "One all-reduce in forward, one in backward, and nothing between the two layers.",
                "the output of `up` was gathered, only to be cut again for `down`",
            ),
            mechanism(
                "stored-shards",
                2,
                "Each rank keeps 1/t of both weights; only the bias of `down` is whole.",
                "the unsharded MLP was kept as an attribute",
            ),
            mechanism(
                "own-shard-only",
                2,
                "A rank computes with its own blocks and never reads another's.",
                "the unsharded MLP was run, in whole or in part",
            ),
            robustness(
                "subgroup",
                1,
                "The MLP works in a group that is not the whole job.",
                "the group was not handed on to the two layers",
            ),
            numbers(
                "own-parts",
                3,
                "The MLP built from your own f, g, column and row layers equals the unsharded one.",
                "an earlier exercise does not pass yet; the other properties are judged with its reference",
            ),
        ],
    ),
]
EXERCISES = [replace(each, forbids=GIVEN_LATER, hides=("tensor_parallel.py",)) for each in _EXERCISES]
