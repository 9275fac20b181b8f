"""Unseen cases of lesson 06: other sizes, dtypes and dimensions, three ranks, other groups, a lone rank."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.checks.case import Case
from labkit.checks.lesson_06.layers import layer_case
from labkit.checks.lesson_06.operators import operator_case

PAIR_AND_ONE = [[0, 2], [1]]
NARROWER = ["float32", "bfloat16", "float16"]
NEIGHBOURS = [[2, 3], [0, 1]]


def _operator_cases(seed: int) -> list[Case]:
    draw = Random(f"06/operators/{seed}")
    rows, columns = draw.randint(2, 9), draw.randint(2, 9)
    return [
        operator_case("unseen: a vector", "values", 3, [rows], seed),
        operator_case("unseen: four dimensions", "values", 2, [2, 1, rows, columns], seed),
        operator_case("unseen: float32", "values", 4, [rows, columns], seed, dtype="float32"),
        operator_case("unseen: bfloat16", "values", 3, [rows, columns], seed, dtype="bfloat16"),
        operator_case("unseen: views", "layout", 4, [rows, 2, columns], seed),
        operator_case("unseen: a pair and one", "subgroup", 3, [rows, columns], seed, groups=PAIR_AND_ONE),
        operator_case("unseen: neighbours", "subgroup", 4, [rows, columns], seed, groups=NEIGHBOURS),
        operator_case("unseen: alone", "values", 1, [rows, columns], seed),
        operator_case("unseen: zeros", "values", 3, [rows, columns], seed, zeros_on=0),
        operator_case("unseen: kept", "kept", 2, [], seed, dtype=draw.choice(NARROWER)),
    ]


def _column_cases(seed: int) -> list[Case]:
    draw = Random(f"06/column/{seed}")
    features, part = draw.randint(2, 9), draw.randint(2, 5)
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    return [
        layer_case("unseen: three ranks", "values", 3, lead, (features, 3 * part), seed),
        layer_case("unseen: float32", "values", 4, [3, *lead], (features, 4 * part), seed, dtype="float32"),
        layer_case("unseen: no bias", "values", 2, [5], (features, 2 * part), seed, bias=False),
        layer_case("unseen: bfloat16", "values", 2, lead, (features, 2 * part), seed, dtype="bfloat16"),
        layer_case("unseen: gathered", "gather", 3, [2, *lead], (features, 3 * part), seed),
        layer_case(
            "unseen: gathered bfloat16", "gather", 2, lead, (features, 2 * part), seed, dtype="bfloat16"
        ),
        layer_case("unseen: gathered vector", "gather", 2, [], (features, 2 * part), seed),
        layer_case("unseen: gathered, other blocks", "gather-own-shard", 4, lead, (features, 4 * part), seed),
        layer_case("unseen: other blocks", "own-shard", 3, lead, (features, 3 * part), seed),
        layer_case("unseen: 10 outputs", "uneven", 4, [3], (8, 10), seed, uneven=10),
        layer_case("unseen: 2 outputs", "uneven", 3, [3], (9, 2), seed, uneven=2),
        layer_case("unseen: 9 outputs", "uneven", 4, [3], (8, 9), seed, uneven=9, groups=NEIGHBOURS),
        layer_case("unseen: pair", "subgroup", 3, lead, (features, 2 * part), seed, groups=PAIR_AND_ONE),
        layer_case(
            "unseen: gathered pairs", "gather-subgroup", 4, lead, (features, 4), seed, groups=NEIGHBOURS
        ),
        layer_case("unseen: alone", "values", 1, lead, (features, part), seed),
        layer_case("unseen: gathered views", "gather-layout", 2, lead[1:], (features, 2 * part), seed),
    ]


def _row_cases(seed: int) -> list[Case]:
    draw = Random(f"06/row/{seed}")
    part, features = draw.randint(2, 5), draw.randint(2, 9)
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    return [
        layer_case("unseen: three ranks", "values", 3, lead, (3 * part, features), seed, bias=False),
        layer_case(
            "unseen: float32",
            "values",
            4,
            [3, *lead],
            (4 * part, features),
            seed,
            bias=False,
            dtype="float32",
        ),
        layer_case("unseen: bfloat16", "values", 2, lead, (2 * part, features), seed, dtype="bfloat16"),
        layer_case("unseen: zeros on one rank", "values", 3, lead, (3 * part, features), seed, zeros_on=1),
        layer_case("unseen: bias on three ranks", "bias", 3, lead, (3 * part, features), seed),
        layer_case("unseen: bias alone", "bias", 1, lead, (part, features), seed),
        layer_case("unseen: other blocks", "own-shard", 3, lead, (3 * part, features), seed),
        layer_case("unseen: 10 inputs", "uneven", 4, [3], (10, 8), seed, uneven=10),
        layer_case("unseen: 2 inputs", "uneven", 3, [3], (2, 9), seed, uneven=2),
        layer_case("unseen: 9 inputs", "uneven", 4, [3], (9, 8), seed, uneven=9, groups=NEIGHBOURS),
        layer_case(
            "unseen: pair", "subgroup", 3, lead, (2 * part, features), seed, bias=False, groups=PAIR_AND_ONE
        ),
        layer_case("unseen: neighbours", "subgroup", 4, lead, (2 * part, features), seed, groups=NEIGHBOURS),
        layer_case("unseen: alone", "values", 1, [4], (part, features), seed, bias=False),
        layer_case("unseen: views", "layout", 3, lead[1:], (3 * part, features), seed),
    ]


def _mlp_cases(seed: int) -> list[Case]:
    draw = Random(f"06/mlp/{seed}")
    features, part = draw.randint(2, 7), draw.randint(2, 5)
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    return [
        layer_case("unseen: three ranks", "values", 3, lead, (features, 3 * part), seed),
        layer_case("unseen: float32", "values", 4, [3, *lead], (features, 4 * part), seed, dtype="float32"),
        # two rows: over more of them a GeLU written out adds up more roundings than the text allows
        layer_case("unseen: bfloat16", "values", 2, [2], (features, 2 * part), seed, dtype="bfloat16"),
        layer_case("unseen: other blocks", "own-shard", 4, lead, (features, 4 * part), seed),
        layer_case("unseen: own parts", "own-parts", 3, lead, (features, 3 * part), seed),
        layer_case(
            "unseen: pair, down without a bias",
            "subgroup",
            3,
            lead,
            (features, 2 * part),
            seed,
            groups=PAIR_AND_ONE,
            biases=["up"],
        ),
        layer_case(
            "unseen: neighbours without biases",
            "subgroup",
            4,
            lead,
            (features, 2 * part),
            seed,
            groups=NEIGHBOURS,
            biases=[],
        ),
        layer_case("unseen: alone", "values", 1, lead, (features, part), seed),
        layer_case("unseen: views", "layout", 3, lead[1:], (features, 3 * part), seed, biases=["up"]),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "06.copy-to-tensor-parallel": _operator_cases,
    "06.reduce-from-tensor-parallel": _operator_cases,
    "06.column-parallel-linear": _column_cases,
    "06.row-parallel-linear": _row_cases,
    "06.tensor-parallel-mlp": _mlp_cases,
}
