"""Unseen cases of lesson 09: other grids and orders, other models, other machines."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_09.choice import SECONDS
from labkit.checks.lesson_09.crossing import crossing_setting, of_each_order, sent_setting
from labkit.checks.lesson_09.crossing import settings_case as bytes_case
from labkit.checks.lesson_09.drawn import of_all_sorts
from labkit.checks.lesson_09.given import A100_40, H100, LLAMA_8B, MIXTRAL, SMALL_GPT, machines
from labkit.checks.lesson_09.rank_grid import groups_case, places_case
from labkit.checks.lesson_09.reasons import all_options, filled, one_plan, plans
from labkit.checks.lesson_09.refused_grids import (
    orders_refused,
    other_grids,
    other_orders,
    places_outside,
    ranks_outside,
    refused_case,
)
from labkit.checks.lesson_09.seconds import many_stages, priced, small_layers
from labkit.checks.lesson_09.settings import Setting, case_of, setting
from labkit.checks.lesson_09.training import grid_case

AXES = ("dp", "pp", "tp")
# Grids, dp x pp x tp, of trainings with dropout and in 16 bits: others than where students look
DROPPING = ((2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 3, 1), (4, 1, 2), (1, 3, 2))
NARROW = ((2, 1, 2), (2, 2, 1), (3, 1, 2))


def _order(draw: Random, axes: tuple[str, ...] = AXES) -> tuple[str, ...]:
    return tuple(draw.sample(axes, len(axes)))


def _grid(seed: int) -> list[Case]:
    draw = Random(f"09/grid/{seed}")
    sizes = {axis: draw.randint(2, 5) for axis in ("cp", *AXES)}
    one = {"dp": 1, "pp": draw.randint(2, 4), "tp": 1, "ep": 2}
    cube = {"dp": 2, "pp": 2, "tp": 2}
    five = {"cp": 3, "ep": 2, "dp": 2, "pp": 2, "tp": 2}
    long = {"dp": draw.randint(257, 300), "tp": 2}
    order, pair, ranks = _order(draw, tuple(sizes)), {"pp": 1, "tp": 2}, math.prod(sizes.values())
    outside = (ranks, ranks + draw.randint(1, ranks), -1, -draw.randint(2, ranks))
    return [
        places_case(
            "unseen: four axes", [(sizes, _order(draw, tuple(sizes))) for _ in range(3)], seed, "places"
        ),
        places_case("unseen: axes of size 1", [(one, _order(draw, tuple(one)))], seed, "places-of-one"),
        groups_case("unseen: six ranks", {"pp": 3, "tp": 2}, _order(draw, ("pp", "tp")), seed),
        groups_case(
            "unseen: eight ranks",
            cube,
            _order(draw),
            seed,
            then=[{"dp": 4, "pp": 1, "tp": 2}, list(_order(draw))],
        ),
        groups_case("unseen: axes of other hashes", cube, _order(draw), seed, own_names=True),
        groups_case("unseen: 4 x 1", {"dp": 4, "tp": 1}, ("tp", "dp"), seed, "groups-of-one"),
        refused_case(
            "unseen: other grids on 2 ranks",
            other_grids({"dp": 1}, {"cp": 3, "tp": draw.randint(1, 5)}, {"pp": 1, "tp": 1}),
            seed,
        ),
        refused_case("unseen: ranks outside", ranks_outside(sizes, order, *outside), seed),
        refused_case(
            "unseen: other orders",
            orders_refused("rank_to_coordinates", sizes, other_orders(order), draw.randint(0, 5)),
            seed,
        ),
        refused_case(
            "unseen: groups of other orders",
            orders_refused("build_groups", pair, other_orders(_order(draw, tuple(pair)))),
            seed,
        ),
        refused_case("unseen: coordinates outside", places_outside(sizes, order, draw), seed),
        places_case("unseen: five axes", [(five, _order(draw, tuple(five)))], seed, "places"),
        places_case("unseen: long axes", [(long, _order(draw, tuple(long)))], seed, "places"),
    ]


def _bytes(seed: int) -> list[Case]:
    draw = Random(f"09/bytes/{seed}")
    model = {**SMALL_GPT, "num_layers": draw.choice([12, 20, 28]), "vocabulary": draw.randint(1000, 60_000)}
    boxes = [
        crossing_setting([draw.choice([2, 3, 4]) for _ in AXES], _order(draw), draw.choice([2, 4, 8]))
        for _ in range(6)
    ]
    uneven = [
        crossing_setting([draw.choice([1, 2, 3]), 5, 2], _order(draw), draw.choice([3, 4, 7]))
        for _ in range(6)
    ]
    sent = [{axis: float(draw.randint(1, 10 ** draw.randint(1, 7))) for axis in AXES} for _ in range(6)]
    orders = [
        crossing_setting([draw.choice([1, 2, 4]) for _ in AXES], AXES, draw.choice([2, 4]), s) for s in sent
    ]
    return [
        bytes_case(
            "unseen: a model",
            [
                sent_setting(model, 3, 4, 2, 36, 3),
                sent_setting(LLAMA_8B, 4, 2, 4, 24, 2),
                sent_setting(MIXTRAL, draw.choice([2, 3, 6]), 2, 4, 36, 1),
            ],
            seed,
            "sent",
        ),
        bytes_case(
            "unseen: axes of size 1",
            [sent_setting(model, 1, 1, 4, 5, 5), sent_setting(model, 5, 1, 1, 10, 2)],
            seed,
            "sent-of-one",
        ),
        bytes_case("unseen: boxes", boxes, seed, "crossing"),
        bytes_case("unseen: nodes that axes do not divide", uneven, seed, "uneven"),
        bytes_case("unseen: which order", orders, seed, "order"),
        bytes_case("unseen: each order once", of_each_order(draw), seed, "order"),
    ]


def _training(seed: int) -> list[Case]:
    draw = Random(f"09/training/{seed}")
    size: dict[str, Any] = {"hidden": draw.choice([8, 12]), "heads": 4, "sequence": draw.randint(3, 6)}

    def case(name: str, kind: str, dp: int, pp: int, tp: int, **params: Any) -> Case:
        """Of more steps than where students look."""
        settings = {**size, "steps": draw.randint(4, 6), **params}
        return grid_case(f"unseen: {name}", kind, dp, pp, tp, seed, **settings)

    second = {"rows": max(3, draw.randint(2, 4)), "sequence": draw.randint(2, size["sequence"] - 1)}
    larger = {
        "sizes": {"dp": 1, **draw.choice([{"pp": 2, "tp": 3}, {"pp": 3, "tp": 2}])},
        "layers": 3,
        "hidden": 240,
        "heads": 6,
    }
    return [
        case("dp 2, pp 1, tp 2", "other-grids", 2, 1, 2, micro_batches=2),
        case("dp 1, pp 4, tp 1", "other-grids", 1, 4, 1, layers=4, micro_batches=2),
        case("uneven", "uneven", 1, 2, 2, layers=3, vocabulary=17, rows=5, second=second),
        case("untied", "untied", 2, 2, 1, tied=False, vocabulary=11),
        case("dp 2, pp 2, tp 2", "values", 2, 2, 2, layers=3, vocabulary=15),
        case("another order", "other-orders", 2, 2, 2, order=_order(draw)),
        case("dropout", "dropout", *draw.choice(DROPPING), layers=3, dropout=0.2),
        case("in bfloat16", "float32", *draw.choice(NARROW), dtype="bfloat16"),
        case("dp 2, pp 3, tp 1", "three-stages", 2, 3, 1, layers=3, micro_batches=2, larger=larger),
    ]


def _seconds(seed: int) -> list[Case]:
    draw = Random(f"09/seconds/{seed}")
    given = machines(4, 4, {**A100_40, "falloff": 0.4, "layer_floor": 0.0, "links": draw.uniform(5e10, 3e11)})
    slow = {**given, "network": draw.uniform(1e9, 4e9)}
    grids = [(4, 2, 2, 1), (2, 4, 2, 2), (16, 1, 1, 1), (1, 4, 4, 6), (8, 2, 1, 3)]
    return [
        case_of("unseen: terms", "terms", priced(LLAMA_8B, given, 96, grids), seed),
        case_of(  # and fewer micro-batches
            "unseen: many stages", "terms", priced(LLAMA_8B, given, 8, [(1, 1, 16, 1), (2, 1, 8, 1)]), seed
        ),
        case_of(
            "unseen: uneven", "uneven", priced(SMALL_GPT, given, 80, [(1, 1, 16, 4), (1, 2, 7, 1)]), seed
        ),
        case_of(
            "unseen: recomputed", "recompute", priced(LLAMA_8B, slow, 96, grids, zero=1, recompute=True), seed
        ),
        case_of(
            "unseen: slow",
            "exposed",
            priced(LLAMA_8B, slow, 96, grids)
            + priced(LLAMA_8B, {**slow, "network": slow["network"] / 2}, 96, grids[:2])
            + priced(MIXTRAL, slow, 96, grids[:2]),
            seed,
        ),
        case_of("unseen: gathered", "zero", priced(LLAMA_8B, slow, 96, grids, zero=1), seed),
        case_of("unseen: a stage for a few layers", "uneven", many_stages(draw), seed),
        case_of(
            "unseen: small layers",
            "floor",
            priced(SMALL_GPT, machines(4, 4, H100), 96, grids)
            + small_layers(draw.uniform(2e9, 40e9), draw.uniform(2e-3, 9e-3)),
            seed,
        ),
        case_of(
            "unseen: one GPU", "one", priced(SMALL_GPT, machines(1, 1, A100_40), 9, [(1, 1, 1, 3)]), seed
        ),
    ]


def _reasons(seed: int) -> list[Case]:
    draw = Random(f"09/feasible/{seed}")
    two, pairs, sixes = machines(2, 8, H100), machines(4, 2, A100_40), machines(2, 6, H100)
    model = {**SMALL_GPT, "hidden": 2560, "num_heads": 20, "num_kv_heads": 10, "ffn": 10_240}
    plan = {"data": 2, "tensor": 2, "pipeline": 2, "micro_batch": draw.choice([1, 2, 4]), "zero": 0}
    return [
        case_of("unseen: run", "runs", plans(model, two, 48, (8, 2, 1, 1), (4, 1, 4, 3), (1, 2, 8, 1)), seed),
        case_of("unseen: GPUs", "gpus", plans(model, two, 48, (4, 2, 1, 1), (12, 2, 1, 1)), seed),
        case_of(
            "unseen: nodes of two", "node", plans(SMALL_GPT, pairs, 48, (2, 4, 1, 1), (1, 8, 1, 3)), seed
        ),
        case_of("unseen: of six", "runs", plans(SMALL_GPT, sixes, 24, (4, 3, 1, 1), (2, 6, 1, 1)), seed),
        case_of("unseen: four of six", "node", plans(SMALL_GPT, sixes, 24, (3, 4, 1, 1)), seed),
        case_of("unseen: heads", "heads", plans(model, two, 48, (4, 4, 1, 1), (2, 8, 1, 1)), seed),
        case_of("unseen: layers", "layers", plans(model, machines(5, 5, H100), 48, (1, 1, 25, 1)), seed),
        case_of("unseen: batch", "batch", plans(model, two, 44, (8, 2, 1, 1), (4, 2, 2, 3)), seed),
        case_of("unseen: several", "several", plans(model, pairs, 46, (5, 8, 30, 1), (3, 3, 1, 4)), seed),
        case_of("unseen: memory", "memory", plans(LLAMA_8B, pairs, 48, (8, 1, 1, 1), (1, 2, 4, 8)), seed),
        case_of("unseen: all options", "memory", all_options(draw), seed),
        case_of("unseen: one plan", "memory", one_plan(**plan), seed),
        case_of(
            "unseen: just", "close", [filled(SMALL_GPT, 48, s, **plan) for s in (0.97, 0.9996, 1.0004)], seed
        ),
        case_of("unseen: just, with small micro-batches", "close", _deep(), seed),
    ]


def _deep() -> list[Setting]:
    """More stages than sequences in a micro-batch: as many micro-batches as are under way, and fewer."""
    whole = {"data": 1, "tensor": 1, "pipeline": 8, "micro_batch": 1}
    half = {"data": 2, "tensor": 1, "pipeline": 4, "micro_batch": 1, "zero": 1}
    return [
        *(filled(SMALL_GPT, 8, share, **whole) for share in (0.98, 1.02)),
        *(filled(SMALL_GPT, 6, share, **half) for share in (0.98, 1.02)),
    ]


def _choice(seed: int) -> list[Case]:
    draw = Random(f"09/choice/{seed}")
    model = {**SMALL_GPT, "num_layers": 40, "hidden": 5120, "num_heads": 40}
    three = {**LLAMA_8B, "num_layers": 28, "hidden": 3072, "num_heads": 24, "ffn": 8192}
    odd = {
        "memory": 30e9,
        "flops": 90e12,
        "links": 60e9,
        "network": draw.uniform(2e9, 6e9),
        "layer_floor": 1e-3,
    }
    usual = [
        setting(model, machines(draw.choice([2, 4, 8]), 8, H100), 384, 2048),
        setting(three, machines(6, 4, A100_40), 144, 4096),
    ]
    slow = setting(three, machines(8, 4, {**H100, "network": draw.uniform(8e8, 3e9)}), 192, 2048)
    small = setting(model, machines(8, 8, odd), 192, 2048)
    pairs = setting(three, machines(12, 2, {**odd, "memory": 48e9}), 96, 4096)
    many = draw.choice([29, 31, 37, 41, 43])  # a prime number of more GPUs than layers: no grid has them
    none = [
        setting(three, machines(many, 1, H100), draw.randint(1, 28), 2048),
        setting(model, machines(1, 2, odd), 8, 2048),
    ]
    sorts = of_all_sorts(draw, 16)
    return [
        case_of("unseen: clusters", "usual", usual, seed, SECONDS),
        case_of("unseen: slow", "slow", [slow], seed, SECONDS),
        case_of("unseen: small", "small", [small], seed, SECONDS),
        case_of("unseen: pairs", "pairs", [pairs], seed, SECONDS),
        case_of("unseen: all sorts", "usual", sorts[::2], seed, SECONDS),
        case_of("unseen: more of all sorts", "usual", sorts[1::2], seed, SECONDS),
        case_of("unseen: none", "refused", none, seed, SECONDS),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "09.rank-grid": _grid,
    "09.bytes-between-nodes": _bytes,
    "09.train-3d": _training,
    "09.step-seconds": _seconds,
    "09.feasible": _reasons,
    "09.choose-plan": _choice,
}
