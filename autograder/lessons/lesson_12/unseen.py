"""Unseen cases of lesson 12: other sizes and dtypes, two to five ranks, other groups, other models."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from labkit.checks.case import Case
from labkit.checks.lesson_12.arithmetic import settings_case as model_case
from labkit.checks.lesson_12.arithmetic import shapes, with_attention
from labkit.checks.lesson_12.balance import balance_case
from labkit.checks.lesson_12.capacity import drop_case, size_case
from labkit.checks.lesson_12.clipping import clip_case
from labkit.checks.lesson_12.exchange import exchange_case
from labkit.checks.lesson_12.permuting import both_of, permute_case
from labkit.checks.lesson_12.reducing import reduce_case, trained_case
from labkit.checks.lesson_12.routing import route_case
from labkit.checks.lesson_12.spread import spread_case

NARROW = ("bfloat16", "float16", "float32")
PAIR_AND_ONE = [[0, 2], [1]]


def _route_cases(seed: int) -> list[Case]:
    draw = Random(f"12/route/{seed}")
    h, e = draw.randint(4, 9), draw.randint(5, 9)
    return [
        route_case("unseen: three", "values", [11, h, e], 3, seed),
        route_case("unseen: two, float32", "values", [8, h, e], 2, seed, dtype="float32"),
        route_case("unseen: float16", "low", [14, h, 5], 2, seed, dtype="float16"),
        route_case("unseen: all in float16", "low", [9, h, 5], 2, seed, dtype="float16", router="float16"),
        route_case("unseen: tokens in float64", "mixed", [7, h, e], 3, seed, router="float32"),
        route_case(
            "unseen: a router of rows nearly alike",
            "near",
            [20, h, e],
            3,
            seed,
            dtype="float32",
            router="float64",
            near=1e-8,
        ),
        route_case("unseen: a bias", "biased", [13, h, e], draw.randint(1, 3), seed, dtype="float32"),
        route_case("unseen: a bias in float16", "biased", [50, h, e], 2, seed, bias="float16"),
        route_case(
            "unseen: a bias for unlikely experts", "biased", [11, h, e], 2, seed, dtype="float32", below=28.0
        ),
        # at a level of 0.5 all that biases are added to is above 0
        route_case(
            "unseen: a bias in float64",
            "biased",
            [12, h, e],
            2,
            seed,
            dtype="float32",
            bias="float64",
            level=draw.choice((-0.05 * e, 0.5)),
        ),
        *_extreme_routes(draw, h, e, seed),
        route_case("unseen: too many", "refused", [2, h, e], e + 2, seed),
        route_case("unseen: too many for no tokens", "refused", [0, h, e], e + 1, seed),
        route_case("unseen: below 0", "refused", [2, h, e], -1, seed),
    ]


def _extreme_routes(draw: Random, h: int, e: int, seed: int) -> list[Case]:
    """The fewest tokens and choices, and the largest scores: of h numbers a token, among e experts."""
    return [
        route_case("unseen: one", "extremes", [5, h, e], 1, seed, dtype="float32"),
        route_case("unseen: one of one", "extremes", [1, h, e], 1, seed, dtype="float32"),
        route_case("unseen: all", "extremes", [5, h, 4], 4, seed),
        route_case("unseen: no tokens", "extremes", [0, h, e], 3, seed, dtype="float32"),
        route_case("unseen: scores of hundreds", "extremes", [9, h, e], 3, seed, shift=850.0),
        route_case("unseen: scores hundreds apart", "extremes", [9, h, 8], 3, seed, apart=850.0),
        route_case(
            "unseen: apart, float32",
            "extremes",
            [8, h, e],
            draw.randint(1, 2),
            seed,
            dtype="float32",
            apart=draw.uniform(150.0, 350.0),
        ),
    ]


def _permute_cases(seed: int) -> list[Case]:
    draw = Random(f"12/permute/{seed}")
    n, h, e = draw.randint(7, 14), draw.randint(6, 9), draw.randint(4, 7)
    return [
        permute_case("unseen: three", "order", [n, h, e], 3, seed, dtype="float32"),
        permute_case("unseen: four", "order", [n, h, e], 4, seed),
        permute_case("unseen: one token", "order", [1, h, e], 3, seed, dtype="float32"),
        permute_case("unseen: one expert", "order", [n, h, 1], 1, seed),
        permute_case("unseen: one busy expert", "idle", [n, h, e], 1, seed, used=[e - 3]),
        permute_case(
            "unseen: the first and the last two idle", "idle", [n, h, e + 3], 2, seed, used=[1, 2, e]
        ),
        permute_case("unseen: back", "back", [n, h, e], draw.randint(2, 4), seed),
        permute_case("unseen: back, float32", "back", [n, h, e], 2, seed, dtype="float32"),
        permute_case("unseen: experts that are a view", "idle", [n, h, e], 2, seed, turned=True),
        permute_case("unseen: gates that are a view", "back-idle", [n, h, e], 2, seed, turned=True),
        permute_case("unseen: back to one token", "back", [1, 1, e], 2, seed),
        permute_case("unseen: wide", "wide", [n, h, e], 2, seed, gates="float32"),
        permute_case(
            "unseen: both in float16", "wide", [n, h, e], draw.randint(1, 3), seed, **both_of("float16")
        ),
        permute_case(
            "unseen: rows wider than gates", "wide", [n, h, e], 2, seed, dtype="float32", gates="bfloat16"
        ),
        permute_case(
            "unseen: gates in float64",
            "low",
            [3 * n, h, e],
            4,
            seed,
            dtype=draw.choice(NARROW),
            gates="float64",
        ),
        permute_case(
            "unseen: gates of another half", "low", [2 * n, h, e], 3, seed, dtype="bfloat16", gates="float16"
        ),
        permute_case("unseen: low", "low", [2 * n, h, e], 3, seed, dtype="bfloat16"),
        permute_case("unseen: low, one", "low", [2 * n, h, e], 1, seed, dtype="bfloat16"),
    ]


def _exchange_cases(seed: int) -> list[Case]:
    draw = Random(f"12/exchange/{seed}")
    local, h, most = draw.randint(1, 3), draw.randint(2, 6), draw.randint(2, 5)
    return [
        exchange_case("unseen: counts", "counts", 3, local + 1, h, most, seed),
        exchange_case("unseen: large counts", "counts", 2, 9, h, most, seed, beside=2**24),
        exchange_case("unseen: counts in int32", "counts", 3, local, h, most, seed, whole="int32"),
        exchange_case("unseen: five ranks, float16", "values", 5, local, h, most, seed, dtype="float16"),
        exchange_case("unseen: two ranks, float32", "values", 2, local, h, most, seed, dtype="float32"),
        exchange_case("unseen: there and back", "twice", 2, local, h, most, seed),
        exchange_case(
            "unseen: idle", "idle", 4, local, h, most, seed, silent=[0, 3], deaf=[3], still=[1], blank=[2]
        ),
        exchange_case("unseen: strided", "strided", 3, 2, h, most, seed, dtype="float32"),
        exchange_case("unseen: columns of a wider matrix", "strided", 3, 2, h, most, seed, columns=True),
        exchange_case("unseen: a pair and one", "subgroup", 3, local, h, most, seed, groups=PAIR_AND_ONE),
        exchange_case("unseen: alone", "alone", 1, local, h, most, seed),
    ]


def _spread_cases(seed: int) -> list[Case]:
    draw = Random(f"12/spread/{seed}")
    shape = [draw.randint(3, 6), draw.randint(2, 5), 2]
    tokens = [draw.randint(3, 8) for _ in range(5)]
    return [
        spread_case("unseen: five ranks, three experts a token", "values", 5, tokens, [4, 3, 1], 3, seed),
        spread_case("unseen: two ranks", "values", 2, tokens[:2], shape, 1, seed, dtype="float32"),
        spread_case("unseen: idle", "idle", 3, tokens[:3], [4, 3, 2], 2, seed, idle=[0, 4, 5], still=[0]),
        spread_case(
            "unseen: nothing to send", "empty", 3, [0, tokens[0], 0], shape, 2, seed, plain=[2], idle=[4, 5]
        ),
        spread_case(
            "unseen: bfloat16", "low", 2, tokens[:2], [8, 4, 3], 2, seed, dtype="bfloat16", offset=48.0
        ),
        spread_case("unseen: two calls, one backward", "again", 3, tokens[2:], shape, 2, seed),
        spread_case("unseen: a pair and one", "subgroup", 3, tokens[:3], shape, 2, seed, groups=PAIR_AND_ONE),
        spread_case("unseen: alone", "alone", 1, tokens[:1], [3, 4, 5], 3, seed),
        spread_case("unseen: all parts your own", "own-parts", 4, tokens[:4], [4, 3, 1], 2, seed),
    ]


def _balance_cases(seed: int) -> list[Case]:
    draw = Random(f"12/balance/{seed}")
    tokens, experts = [draw.randint(3, 15) for _ in range(5)], draw.randint(4, 8)
    return [
        balance_case(
            "unseen: five ranks, visits in int32",
            "values",
            tokens,
            experts,
            3,
            seed,
            rate=0.25,
            before=(2**31 - 3 * sum(tokens) // experts) // 5,
            whole="int32",
            bias="float16",
        ),
        balance_case(
            "unseen: two, float32", "values", tokens[:2], 5, 1, seed, dtype="float32", before=90_000_001
        ),
        balance_case(
            "unseen: a small rate", "values", tokens[2:4], 4, 2, seed, rate=draw.uniform(3e-4, 4e-3)
        ),
        balance_case("unseen: only one has tokens", "idle", [0, tokens[0], 0], 6, 2, seed),
        balance_case("unseen: even", "even", tokens[:3], 2, 2, seed),
        # the mean of sevenths, rounded, is no seventh
        balance_case("unseen: even, seven experts", "even", tokens[:2], 7, 7, seed),
        balance_case("unseen: a pair and one", "subgroup", tokens[:3], 4, 2, seed, groups=PAIR_AND_ONE),
        balance_case("unseen: two layers", "layers", tokens[:2], experts, 3, seed, dtype="float32"),
    ]


def _capacity_cases(seed: int) -> list[Case]:
    draw = Random(f"12/capacity/{seed}")
    n, e = draw.randint(9, 20), draw.randint(3, 6)
    settings = [(8 * draw.randint(1, 90), draw.randint(1, 4), 8, factor) for factor in (0.5, 1.0, 1.5, 2.0)]
    ragged = [(draw.randint(1, 60), draw.randint(1, 3), draw.randint(3, 11), 1.25) for _ in range(6)]
    ragged.append((5, 1, draw.choice((2, 3, 6)), 1.25))  # 6.25, of which the whole part divides
    # whole, but more in floats if a factor is divided first
    ragged += [(328, 7, 41, 1.0), (232, 7, 28, 1.0), (174, 2, 29, 1.25)]
    ragged += [(experts + 1, 1, experts, 1.0) for experts in (10_000, 1_000_000)]  # a little more than one
    for factor in (0.375, 1.125):  # no whole number of hundredths; never a whole number of rows
        ragged.append((2 * draw.randint(1_000, 2_000) + 1, 1, draw.randint(3, 9), factor))
    return [
        size_case("unseen: sizes", "sizes", settings, seed),
        size_case("unseen: ragged", "ragged", ragged, seed),
        drop_case("unseen: two", "drops", n, e, 2, draw.randint(2, 5), seed),
        drop_case("unseen: three, float32", "drops", n, e, 3, draw.randint(3, 6), seed, dtype="float32"),
        drop_case("unseen: four, float16", "drops", n, e + 2, 4, -(-3 * n // (e + 2)), seed, dtype="float16"),
        drop_case("unseen: six", "drops", n, e + 4, 6, n // 2, seed),
        drop_case("unseen: gates below 0", "drops", n, e, 2, draw.randint(2, 5), seed, signed=True),
        drop_case("unseen: bfloat16", "drops", 1_000 + n, 3, 1, 259 + 4 * e, seed, dtype="bfloat16"),
        drop_case(
            "unseen: more visits than 16 bits count",
            "drops",
            33_000 + n,
            2,
            1,
            50 + n,
            seed,
            used=[1],
            dtype="float32",
        ),
        drop_case("unseen: hundreds of experts", "drops", 5 * n, 260 + 9 * n, 3, 1, seed, dtype="float32"),
        drop_case("unseen: one row", "drops", n, e, 2, 1, seed),
        drop_case("unseen: two busy experts", "drops", n, e, 2, -(-2 * n // e), seed, used=[0, e - 1]),
        drop_case("unseen: room for all", "roomy", n, e, 3, n, seed),
        drop_case("unseen: none", "roomy", n, e, 1, 0, seed),
        drop_case("unseen: one token", "roomy", 1, e, 1, draw.randint(0, 1), seed, dtype="bfloat16"),
        drop_case("unseen: views", "roomy", n, e, 2, 4, seed, turned=True),
        drop_case("unseen: many tokens", "work", 500 + n, e, 3, 60, seed),
        size_case("unseen: refused", "refused", [(n, 2, e, -0.25)], seed),
    ]


def _arithmetic_cases(seed: int) -> list[Case]:
    draw = Random(f"12/arithmetic/{seed}")
    models = [
        shapes(
            layers=draw.randint(6, 9),
            hidden=2 * draw.randint(5, 20),
            vocabulary=draw.randint(60, 99),
            num_experts=4 * draw.randint(2, 5),
            active_experts=draw.randint(1, 4),
            expert_ffn=draw.randint(5, 30),
            shared_experts=shared,
            dense_layers=dense,
        )
        for shared, dense in ((0, 0), (1, 5), (2, 1))
    ]
    # Of all weights a share of k / E, in floats, is no whole number here
    many = [shapes(num_experts=n, active_experts=k) for n, k in ((49, 1), (98, 2), (103, 3), (55, 7))]
    return [
        model_case("unseen: plain", "parameters", [with_attention(models[0])], seed),
        model_case("unseen: few of many experts", "parameters", [with_attention(m) for m in many], seed),
        model_case("unseen: shared and dense", "fields", [with_attention(m, 77) for m in models[1:]], seed),
        model_case("unseen: operations", "flops", [(m, draw.randint(1, 900)) for m in models], seed),
        model_case("unseen: bytes", "bytes", [(m, draw.randint(1, 90), 4, 2) for m in models], seed),
        model_case("unseen: bytes of numbers nobody tells", "bytes", [(m, 64, 2) for m in models], seed),
        model_case("unseen: refused", "refused", [(models[0], 64, 7, 2)], seed),
        model_case("unseen: dense, alone", "refused", [("Llama 3 70B", draw.randint(1, 90), 1, 2)], seed),
        model_case("unseen: more ranks than experts", "refused", [(models[0], 64, 40, 2)], seed),
    ]


def _reduce_cases(seed: int) -> list[Case]:
    draw = Random(f"12/reduce/{seed}")
    tokens = [draw.randint(2, 7) for _ in range(6)]
    gone = {"shared.0": [1], "experts.1": [0, 3], "experts.0": [2], "experts.2": [2, 3]}
    return [
        reduce_case("unseen: two over three", "values", 2, 3, seed),
        reduce_case("unseen: two over two, float32", "values", 2, 2, seed, dtype="float32"),
        reduce_case("unseen: another layout", "turned", 1, 2, seed, dtype="float32", turned="all"),
        reduce_case("unseen: float64 beside others", "mixed", 1, 2, seed, dtypes=_beside_wide(draw)),
        reduce_case(
            "unseen: one copy", "single", 1, 2, seed, missing={"experts.1": [0], "experts.2": [0, 1]}
        ),
        reduce_case(
            "unseen: float16 beside bfloat16",
            "mixed",
            2,
            1,
            seed,
            dtype="float16",
            dtypes=dict.fromkeys(("shared.1", "experts.1"), "bfloat16"),
            large=["shared.1", "experts.1"],
        ),
        reduce_case(
            "unseen: missing", "missing", 2, 2, seed, missing=gone, zero={"shared.1": [0]}, turned="last"
        ),
        reduce_case("unseen: alone", "missing", 1, 1, seed, missing={"shared.1": [0], "experts.0": [0]}),
        reduce_case("unseen: without shared ones", "missing", 2, 2, seed, without="shared"),
        reduce_case("unseen: two jobs", "subgroup", 1, 2, seed, jobs=2),
        reduce_case(
            "unseen: neighbours with the same experts",
            "subgroup",
            2,
            2,
            seed,
            apart=True,
            after_alone=True,
        ),
        trained_case("unseen: two steps", "trained", 3, 1, tokens[:3], [5, 3, 4], seed),
        trained_case("unseen: your own layer", "own-parts", 1, 3, tokens[3:], [4, 5, 2], seed),
    ]


def _beside_wide(draw: Random) -> dict[str, str]:
    """Dtypes of one of two shared parameters and of two of three experts'; the others are in float64."""
    experts = draw.sample(range(3), 2)
    names = (f"shared.{draw.randint(0, 1)}", *(f"experts.{number}" for number in experts))
    return {name: draw.choice(NARROW) for name in names}


def _clip_cases(seed: int) -> list[Case]:
    draw = Random(f"12/clip/{seed}")
    most = draw.uniform(0.5, 2.0)
    nothing_here = {"experts.0": [0], "experts.1": [0]}
    return [
        clip_case("unseen: two over three", "values", 2, 3, seed, max_norm=most, buffer=True),
        clip_case("unseen: float32", "values", 2, 2, seed, max_norm=most, dtype="float32"),
        clip_case("unseen: hardly above", "values", 1, 2, seed, max_norm=most, above=1.004),
        clip_case("unseen: small", "small", 3, 1, seed, scale=0.02),
        clip_case("unseen: no bound", "small", 1, 2, seed, max_norm=math.inf),
        clip_case("unseen: nothing, a bound of 0", "small", 2, 2, seed, scale=0.0, max_norm=0.0),
        clip_case(
            "unseen: missing",
            "missing",
            2,
            2,
            seed,
            missing={"shared.0": [0, 1], "experts.1": [1]},
            earlier=["shared.1", "experts.0"],
        ),
        clip_case("unseen: experts alone", "missing", 1, 2, seed, without="shared", missing=nothing_here),
        clip_case("unseen: another layout, float32", "turned", 2, 1, seed, turned="all", dtype="float32"),
        clip_case("unseen: low", "low", 1, 3, seed, dtype="bfloat16", max_norm=most),
        clip_case(
            "unseen: of two dtypes",
            "low",
            2,
            1,
            seed,
            dtype="float32",
            scale=20.0,
            max_norm=25.0 + 10 * most,
            dtypes=dict.fromkeys(("shared.0", "shared.1", "experts.0"), "bfloat16"),
        ),
        clip_case(
            "unseen: float64 beside others",
            "low",
            1,
            2,
            seed,
            max_norm=most,
            dtypes={f"{kind}.{draw.randint(0, 1)}": draw.choice(NARROW) for kind in ("shared", "experts")},
        ),
        clip_case("unseen: two jobs", "subgroup", 1, 2, seed, jobs=2),
        clip_case(
            "unseen: neighbours with the same experts",
            "subgroup",
            2,
            2,
            seed,
            apart=True,
            after_alone=True,
        ),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "12.route": _route_cases,
    "12.permute": _permute_cases,
    "12.all-to-all": _exchange_cases,
    "12.expert-parallel": _spread_cases,
    "12.balance": _balance_cases,
    "12.capacity": _capacity_cases,
    "12.expert-arithmetic": _arithmetic_cases,
    "12.reduce-gradients": _reduce_cases,
    "12.clip-grad-norm": _clip_cases,
}
