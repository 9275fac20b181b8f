"""Unseen cases of lesson 02: other costs, sizes, cuts, devices, resident layers and groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_02.layerwise import layerwise_case
from labkit.checks.lesson_02.offload_cases import offload_case, wide_layers, with_buffers, with_dropout
from labkit.checks.lesson_02.partitions import model_costs, partition_case, partition_refusals
from labkit.checks.lesson_02.remote_stages import stage_case
from labkit.checks.lesson_02.small_layers import (
    Specs,
    with_orders,
)
from labkit.checks.lesson_02.step_timing import timing_case


def _hidden(cases: list[Case]) -> list[Case]:
    return [replace(case, name=f"unseen: {case.name}", hidden=True) for case in cases]


def random_layers(draw: Random, count: int, counting_at: int | None = None) -> Specs:
    """Dense layers of sizes that fit together, one of them followed by a running mean if asked."""
    widths = [draw.randint(2, 9) for _ in range(count + 1)]
    layers: Specs = [["dense", a, b] for a, b in pairwise(widths)]
    if counting_at is not None:
        layers.insert(counting_at + 1, ["counting", widths[counting_at + 1]])
    return layers


def _in_other_units(draw: Random, questions: list[Any]) -> list[Any]:
    """Each question in two units more: femtoseconds told in seconds, or less, and bytes of a cluster."""
    units = [[10.0 ** draw.randint(-18, -13), 10.0 ** draw.randint(6, 15)] for _ in questions]
    return [
        [[cost * unit for cost in q[0]], q[1]]
        for q, two in zip(questions, units, strict=True)
        for unit in two
    ]


def _few_layers(draw: Random) -> list[Any]:
    """Up to five layers, some of which cost nothing, on as many devices or more."""
    costs = [[draw.choice((0, 0.5, draw.randint(1, 9))) for _ in range(n)] for n in range(6)]
    return [[own, draw.randint(max(1, len(own)), 9)] for own in costs] + [[[1, 2, 3], 1], [[], 1]]


def _refused_partitions(draw: Random) -> list[Any]:
    """Too few devices, and one negative cost of any size, also where there is little else to look at."""
    devices = [[[draw.randint(0, 9) for _ in range(n)], -draw.randint(0, 9)] for n in (0, 1, 2, 7)]
    sizes = [[1, 1], [1, 4], [3, 8], [4, 4], [draw.randint(5, 9), 1], [9, 4], [60, 8]]
    costs = []
    for n, k in sizes:
        own: list[float] = [draw.randint(0, 9) for _ in range(n)]
        own[draw.randrange(n)] = -draw.randint(11, 99) * 10.0 ** draw.randint(-12, 6)
        costs.append([own, k])
    return [*devices, *costs]


def _partition_cases(seed: int) -> list[Case]:
    draw = Random(f"02/hidden/partition/{seed}")
    random = [[[round(draw.uniform(0, 9), 2) for _ in range(draw.randint(6, 14))], k] for k in (2, 3, 5, 6)]
    heavy = [[[*[1] * 9, 9], 3], [[9, *[1] * 9], 4], [[0, 5, 0, 5, 0, 5, 0], 3], [[7, 7, 7], 2]]
    models = [[model_costs(draw, n), k] for n, k in ((9, 4), (18, 5), (34, 8))]
    sizes = ((draw.randint(45, 90), 3), (draw.randint(45, 90), 4), (250, 12))
    large = [[[round(draw.expovariate(0.3), 3) for _ in range(n)], k] for n, k in sizes]
    return _hidden(
        [
            partition_case("random", "even", random, seed),
            partition_case("one heavy layer", "even", heavy, seed),
            partition_case("models", "even", models, seed),
            partition_case("other units", "even", _in_other_units(draw, [*random, *models[:2]]), seed),
            partition_case("250 layers", "many-layers", large, seed),
            partition_case("few", "few-layers", _few_layers(draw), seed),
            partition_refusals("refused", _refused_partitions(draw), seed),
        ]
    )


def _timing_cases(seed: int) -> list[Case]:
    draw = Random(f"02/hidden/timing/{seed}")
    return _hidden(
        [
            timing_case("three", "device-time", [20, draw.randint(45, 60), 30], seed),
            timing_case("unequal", "device-time", [25], seed, second_ms=draw.randint(140, 180), aside=True),
            timing_case("evaluation", "device-time", [40], seed, steps=2, mode="without gradients"),
            timing_case("inference", "device-time", [40], seed, steps=2, mode="in inference mode"),
            timing_case("slow start", "first-step", [30, 40], seed, first_ms=draw.randint(200, 300)),
            timing_case("timed twice", "first-step", [draw.randint(30, 40)], seed, first_ms=100, twice=True),
            timing_case("one step", "first-step", [draw.randint(60, 80)], seed, first_ms=250, steps=1),
            timing_case(
                "queue", "earlier-work", [50, 20], seed, earlier_ms=draw.randint(250, 300), aside=True
            ),
        ]
    )


def _layerwise_cases(seed: int) -> list[Case]:
    draw = Random(f"02/hidden/layerwise/{seed}")
    layers, buffered = random_layers(draw, 7), random_layers(draw, 6, counting_at=draw.randint(0, 4))
    cuts = sorted(draw.sample(range(1, 7), 3))
    four = [sum(index >= cut for cut in cuts) for index in range(7)]
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    width = draw.randint(3, 7)
    tied: Specs = [["dense", width, 5], ["dense", 5, 5], ["tied", 0], ["dense", width, 4], ["tied", 3]]
    twice: Specs = [*tied[:3], ["dense", width, 5], ["tied", 0]]
    plain: Specs = [*layers[:2], ["tanh"], *layers[2:4], ["tanh"]]
    return _hidden(
        [
            layerwise_case("four", "values", layers, four, lead, seed),
            layerwise_case("back again", "values", layers, [1, 1, 0, 2, 2, 1, 1], [4], seed, dtype="float16"),
            layerwise_case("float32", "values", layers, four, [5], seed, dtype="float32"),
            layerwise_case("layers without weights", "values", plain, [0, 0, 1, 0, 0, 2], [4], seed),
            layerwise_case("in a tuple", "places", layers[:3], [0, 1, -1], [3], seed, in_tuple=True),
            layerwise_case("whole numbers", "buffers", with_orders(layers[:4]), [0, 1, 1, 0], lead, seed),
            layerwise_case("running mean", "buffers", with_buffers(buffered), four, lead, seed),
            layerwise_case("two ties", "tied", tied, [0, 1, 1, 2, 3], [3], seed),
            layerwise_case("ties at home", "tied", tied, [1, 1, 1, 0, 0], [3], seed),
            layerwise_case("two borrow it", "tied", twice, [0, 0, 1, 1, 1], [3], seed),
            layerwise_case("earlier", "optimizer-before", random_layers(draw, 5), [0, 1, 1, 2, 2], [3], seed),
            layerwise_case("too many", "refusal", layers[:3], [0, 1, 1, 0], [3], seed, names=["3", "4"]),
            layerwise_case(
                "token ids",
                "ids",
                [["lookup", draw.randint(5, 9), layers[0][1]], *layers[:3]],
                [1, 0, -1, 1],
                lead,
                seed,
            ),
        ]
    )


def _offload_cases(seed: int) -> list[Case]:
    draw = Random(f"02/hidden/offload/{seed}")
    layers = random_layers(draw, 7)
    width, count = draw.choice([56, 72]), draw.randint(6, 8)
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    wide, narrow = wide_layers(width, count), wide_layers(draw.randint(22, 27), 6)
    ids: Specs = [["lookup", width, width], *wide[:5]]
    return _hidden(
        [
            offload_case("some", "values", layers, draw.randint(1, 5), lead, seed),
            offload_case("float32", "values", layers, 3, [4], seed, dtype="float32"),
            offload_case("wide", "values", wide, draw.randint(1, 3), [1], seed),
            offload_case("memory", "watched", wide, draw.randint(1, 3), [1], seed),
            offload_case("memory, narrow layers", "watched", narrow, draw.randint(1, 2), [1], seed),
            offload_case("late, wide layers", "late", wide, draw.randint(0, 4), [1], seed),
            offload_case("memory, dropout", "watched-language", with_dropout(wide[:6]), 1, [1], seed),
            offload_case("memory, token ids", "watched-language", ids, 0, [2], seed),
            offload_case("buffers on their way", "watched-buffers", with_buffers(wide), 0, [2], seed),
            offload_case("late", "late", layers, draw.randint(0, 4), lead, seed),
            offload_case("buffers", "buffers", with_buffers(layers), draw.randint(0, 5), lead, seed),
            offload_case("whole numbers", "buffers", with_orders(layers), draw.randint(0, 5), lead, seed),
            offload_case("in a tuple", "extreme", layers, draw.randint(1, 6), lead, seed, in_tuple=True),
            offload_case("dropout", "dropout", with_dropout(layers), draw.randint(0, 6), lead, seed),
            *_after_a_failure(draw, layers, lead, seed),
            offload_case("none", "extreme", layers, 0, lead, seed),
            offload_case("all", "extreme", layers, 7, lead, seed),
            offload_case("one of one", "extreme", layers[:1], 0, lead, seed),
            offload_case("too many", "refusal", layers, 8, [3], seed, names=["8"]),
            offload_case("negative", "refusal", layers, -3, [3], seed, names=["-3"]),
        ]
    )


def _after_a_failure(draw: Random, layers: Specs, lead: list[int], seed: int) -> list[Case]:
    """A pass that fails in forward where a layer is still to come, or in backward where one is."""
    resident = draw.randint(0, len(layers) - 3)
    fails = draw.randint(resident + 1, len(layers) - 2)
    where: dict[str, Any] = {"layers": layers, "resident": resident, "lead": lead, "seed": seed}
    return [
        offload_case("a pass that failed", "failed", **where, fails=fails),
        offload_case("a backward that failed", "failed", **where, fails=fails, in_backward=True),
    ]


def _stage_cases(seed: int) -> list[Case]:
    draw = Random(f"02/hidden/stages/{seed}")
    layers = random_layers(draw, 6)
    lead = [draw.randint(1, 3), draw.randint(2, 4)]
    two, three = [0, draw.randint(1, 5), 6], [0, *sorted(draw.sample(range(1, 6), 2)), 6]
    crossed = [[0, 2], [1, 3]]
    columns: Specs = [["columns", *sizes] for _, *sizes in layers[:3]]
    return _hidden(
        [
            stage_case("three", "values", 3, layers, three, lead, seed),
            stage_case("two", "values", 2, layers, two, [5], seed, dtype="float32"),
            stage_case("shapes", "shapes", 2, layers, two, lead, seed),
            stage_case("shapes, four dimensions", "shapes", 2, layers, two, [2, 3, 2], seed),
            stage_case("shapes, three", "shapes", 3, layers, three, [2], seed),
            stage_case("inference", "no-grad", 3, layers, three, lead, seed),
            stage_case("crossed", "subgroup", 4, layers, two, lead, seed, groups=crossed),
            stage_case("alone", "values", 1, layers, [0, 6], lead, seed),
            stage_case("half the bytes", "values", 2, layers, two, [4], seed, dtype="bfloat16"),
            stage_case("half the bytes, float16", "values", 2, layers, two, [4], seed, dtype="float16"),
            stage_case("transposed", "shapes", 3, columns, [0, 1, 2, 3], [3], seed),
        ]
    )


CASES: dict[str, Callable[[int], list[Case]]] = {
    "02.partition-layers": _partition_cases,
    "02.step-seconds": _timing_cases,
    "02.layerwise-model": _layerwise_cases,
    "02.offloaded-model": _offload_cases,
    "02.remote-stage": _stage_cases,
}
