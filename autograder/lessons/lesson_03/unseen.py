"""Unseen cases of lesson 03: other sizes and groups, three ranks, other epochs, buckets and token counts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_03.buckets import Spec, buckets_case
from labkit.checks.lesson_03.indices import indices_case
from labkit.checks.lesson_03.net import net_case
from labkit.checks.lesson_03.not_finite import not_finite_case
from labkit.checks.lesson_03.tokens import tokens_case

PAIR_AND_ONE = [[1, 2], [0]]
OF_EACH_ITS_OWN = [["first", "aside"], ["second"], ["last"]]
NEIGHBOURS = [[2, 3], [0, 1]]


def _indices_cases(seed: int) -> list[Case]:
    draw = Random(f"03/indices/{seed}")
    return [
        indices_case("unseen: many", draw.randint(90, 140), draw.randint(5, 9), seed),
        indices_case("unseen: thousands", draw.randint(4500, 5000), draw.randint(3, 6), seed),
        indices_case("unseen: one short", 8 * 6 - 1, 8, seed),
        indices_case("unseen: fewer than ranks", 2, draw.randint(5, 9), seed),
        indices_case("unseen: few", draw.randint(4, 7), draw.randint(2, 9), seed),
        indices_case("unseen: some", draw.randint(8, 15), draw.randint(2, 20), seed),
        indices_case("unseen: nothing", 0, 3, seed),
        indices_case("unseen: refused, with nothing to read", 0, 3, seed, "refused"),
        indices_case("unseen: refused", draw.randint(5, 9), draw.randint(2, 6), seed, "refused"),
    ]


def _sizes(seed: int, name: str) -> dict[str, Any]:
    draw = Random(f"03/{name}/{seed}")
    sizes = {"rows": draw.randint(2, 6), "width": draw.randint(2, 5), "inner": draw.randint(3, 9)}
    return sizes | {"bucket_bytes": draw.choice([64, 200, 333, 10_000])}


def _more_steps(seed: int, name: str) -> int:
    return Random(f"03/{name}/more/{seed}").randint(5, 12)


def _broadcast_cases(seed: int) -> list[Case]:
    sizes = _sizes(seed, "broadcast")
    return [
        net_case("unseen: three ranks", "values", 3, seed, **sizes),
        net_case("unseen: pair", "subgroup", 3, seed, groups=PAIR_AND_ONE, **sizes),
        net_case("unseen: neighbours", "subgroup", 4, seed, groups=NEIGHBOURS, **sizes),
        net_case("unseen: the first has views", "layout", 3, seed, views_on=[0], **sizes),
        net_case("unseen: two dtypes", "values", 2, seed, mixed=True, **sizes),
        net_case("unseen: buffers alone", "no-parameters", 3, seed, **sizes),
    ]


def _average_cases(seed: int) -> list[Case]:
    sizes, more = _sizes(seed, "average"), _more_steps(seed, "average")
    spoiled = [[0, "first.weight", "nan"], [1, "second.weight", "-inf"], [2, "last.bias", "inf"]]
    spoiled += [[0, "aside.weight", "inf"], [1, "aside.weight", "-inf"]]
    return [
        net_case("unseen: three ranks", "values", 3, seed, more=more, **sizes),
        net_case("unseen: each its own", "unused", 3, seed, without=OF_EACH_ITS_OWN, **sizes),
        net_case("unseen: one alone uses it", "unused", 4, seed, aside=[0], **sizes),
        net_case("unseen: two of one shape", "unused", 2, seed, without=[["last", "aside"], []], **sizes),
        net_case("unseen: frozen", "frozen", 2, seed, frozen=["aside.weight", "last.bias"], **sizes),
        net_case(
            "unseen: thawed", "frozen", 3, seed, frozen=["first.weight"], swapped=["first.weight"], **sizes
        ),
        net_case("unseen: pair", "subgroup", 3, seed, groups=PAIR_AND_ONE, again=True, **sizes),
        net_case("unseen: two have views", "layout", 3, seed, views_on=[0, 2], aside=[1], **sizes),
        net_case("unseen: two dtypes", "values", 2, seed, mixed=True, **sizes),
        net_case(
            "unseen: zeros of another dtype", "unused", 2, seed, mixed=True, zeroed=True, aside=[0], **sizes
        ),
        not_finite_case("unseen: nan and infinite", 3, seed, spoiled, **sizes),
    ]


def _buckets_cases(seed: int) -> list[Case]:
    draw = Random(f"03/buckets/{seed}")
    kinds = ["float64", "float32", "bfloat16", "float16"]
    wider = [*kinds, "complex64", "complex128"]

    def some(count: int, dtypes: list[str], frozen: float) -> list[Spec]:
        shapes = [[draw.randint(1, 9) for _ in range(draw.randint(1, 3))] for _ in range(count)]
        return [(shape, draw.choice(dtypes), draw.random() >= frozen) for shape in shapes]

    wide: Spec = ([4], "float64", True)
    return [
        buckets_case("unseen: many", some(12, ["float32"], 0), draw.randint(100, 600), seed),
        buckets_case("unseen: frozen", some(9, ["float64"], 0.4), draw.randint(100, 600), seed),
        buckets_case("unseen: dtypes", some(12, kinds, 0.2), draw.randint(100, 900), seed),
        buckets_case("unseen: exactly full", [([8], "float32", True)] * 6, 64, seed),
        buckets_case(
            "unseen: full, then nothing", [([0], "float32", True), ([4], "float32", True)], 16, seed
        ),
        buckets_case(
            "unseen: larger than a bucket, then nothing",
            [([2], "float32", True), ([0], "float32", True), ([9], "float32", True)],
            16,
            seed,
        ),
        buckets_case("unseen: complex numbers", [([4], "complex64", True)] * 5, 64, seed),
        buckets_case("unseen: wider complex numbers", [([4], "complex128", True)] * 5, 128, seed),
        *[buckets_case(f"unseen: {d} alone", some(9, [d], 0.1), draw.randint(100, 900), seed) for d in wider],
        buckets_case(
            "unseen: a deep model", some(draw.randint(1050, 1400), ["float32"], 0.1), 400, seed, kind="many"
        ),
        buckets_case("unseen: the wide one last", [*[([8], "float32", True)] * 4, wide], 64, seed),
        buckets_case("unseen: the wide one first", [wide, *[([8], "float32", True)] * 4], 64, seed),
        buckets_case("unseen: tiny", some(5, ["bfloat16"], 0), 1, seed),
    ]


def _overlap_cases(seed: int) -> list[Case]:
    draw, sizes = Random(f"03/overlap/accumulating/{seed}"), _sizes(seed, "overlap")
    more = _more_steps(seed, "overlap")
    large = {"rows": 96, "width": 16, "inner": 48, "bucket_bytes": 1}
    return [
        net_case("unseen: three ranks", "values", 3, seed, zeroed=True, earlier=True, more=more, **sizes),
        net_case("unseen: two dtypes", "values", 2, seed, mixed=True, **sizes),
        net_case("unseen: two forwards, then two backwards", "values", 2, seed, ahead=True, **sizes),
        net_case("unseen: timed", "many", 2, seed, **large),
        net_case("unseen: small layers, timed", "many", 2, seed, **sizes | {"bucket_bytes": 1}),
        net_case("unseen: large layers", "values", 2, seed, **large),
        net_case("unseen: accumulating", "no-sync", 3, seed, aside_in=draw.randint(1, 2), **sizes),
        net_case("unseen: a layer used only in what was cleared", "no-sync", 2, seed, aside_in=0, **sizes),
        net_case("unseen: accumulating alone", "no-sync", 1, seed, **sizes),
        net_case("unseen: each its own", "unused", 3, seed, without=OF_EACH_ITS_OWN, **sizes),
        net_case("unseen: unused everywhere", "unused", 2, seed, aside=[], earlier=True, **sizes),
        net_case("unseen: pair", "subgroup", 3, seed, groups=PAIR_AND_ONE, **sizes),
        net_case("unseen: neighbours", "subgroup", 4, seed, groups=NEIGHBOURS, **sizes),
        net_case("unseen: the first has views", "layout", 3, seed, views_on=[0], **sizes),
        net_case("unseen: three ranks, timed", "many", 3, seed, **large),
    ]


def _tokens_cases(seed: int) -> list[Case]:
    draw = Random(f"03/tokens/{seed}")
    counts = [draw.randint(1, 12) for _ in range(4)]
    return [
        tokens_case("unseen: three ranks", "values", counts[:3], seed, again=True),
        tokens_case("unseen: hundreds", "values", [draw.randint(257, 2000) for _ in range(2)], seed),
        tokens_case("unseen: four ranks", "values", counts, seed, each=draw.randint(7000, 9000)),
        tokens_case(
            "unseen: more than a million",
            "millions",
            [3, 3],
            seed,
            each=2**18,
            dtype="float16",
            loss_sum=40_000,
        ),
        tokens_case("unseen: empty", "empty", [counts[0], 0, counts[1]], seed),
        tokens_case("unseen: pair", "subgroup", counts[:3], seed, groups=PAIR_AND_ONE, again=True),
    ]


def _accumulate_cases(seed: int) -> list[Case]:
    sizes = _sizes(seed, "accumulate")
    rows = sizes.pop("rows")
    uneven = sizes | {"lengths": [3, 1, 2]}
    then = sizes | {"then": [[6, 1], [5]], "resting": ["aside"]}
    return [
        net_case("unseen: three ranks", "values", 3, seed, rows=rows, **sizes),
        net_case("unseen: uneven", "uneven", 2, seed, sizes=[[1, 6], [4, 4, 2]], rows=6, **uneven),
        net_case("unseen: other rows then", "uneven", 2, seed, sizes=[[2, 3], [4]], rows=6, **then),
        net_case("unseen: own", "own-parts", 3, seed, rows=rows, **sizes),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "03.shard-indices": _indices_cases,
    "03.broadcast-module": _broadcast_cases,
    "03.average-gradients": _average_cases,
    "03.assign-buckets": _buckets_cases,
    "03.overlapped-data-parallel": _overlap_cases,
    "03.token-weighted-loss": _tokens_cases,
    "03.accumulate-gradients": _accumulate_cases,
}
