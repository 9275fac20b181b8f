"""Cutting a list of layers into contiguous parts: what its check asks, and the best that can be done."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Property, no_inputs
from labkit.checks.lesson_02.layerwise import refusal
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank

NEAR_ENOUGH = 1.3  # where a case asks for something else than the best cut


def ask_partitions(rank: Rank) -> None:
    """Call `partition_layers` with each of the case's questions [costs, num_devices]."""
    if rank.params["kind"] == "refusal":
        for index, (costs, num_devices) in enumerate(rank.params["questions"]):
            with rank.expect_error(f"refusal {index}"):
                rank.student.partition_layers(list(costs), num_devices)
        return
    parts = []
    for costs, num_devices in rank.params["questions"]:
        given = list(costs)
        parts.append(_plain(rank.student.partition_layers(given, num_devices)))
        if given != list(costs):
            raise ValueError("partition_layers changed the list of costs it was given")
    rank.fact("parts", parts)


def _plain(parts: Any) -> JSON:
    return [[int(index) for index in part] for part in parts]


def judge_partitions(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Every layer once and in order; and no other cut has a smaller largest part."""
    facts, questions = answers[0].facts, case.params["questions"]
    if case.params["kind"] == "refusal":
        for index in range(len(questions)):
            yield refusal("wrong-arguments", facts[f"refusal {index}"], [case.params["names"][index]])
        return
    for (costs, num_devices), parts in zip(questions, facts["parts"], strict=True):
        yield from _judge_one(case, costs, num_devices, parts)


def _judge_one(
    case: Case, costs: Sequence[float], num_devices: int, parts: list[list[int]]
) -> Iterator[Finding]:
    asked = f"{_short(costs)} on {num_devices} devices"
    placed = [index for part in parts for index in part]
    whole = len(parts) == num_devices and placed == list(range(len(costs)))
    every = "every-layer-once" if "every-layer-once" in case.properties else case.properties[0]
    wanted = f"{asked}: {num_devices} parts that hold layers 0 to {len(costs) - 1}, each once, in order"
    yield Finding(every, whole, wanted, f"parts {_short(parts)}")
    best = smallest_maximum(costs, num_devices)
    slack = 1 + 1e-9 if every != case.properties[0] else NEAR_ENOUGH
    largest = max((sum(costs[index] for index in part) for part in parts), default=0.0) if whole else math.inf
    wanted = f"{asked}: the largest part costs {'' if slack < NEAR_ENOUGH else 'not much more than '}{best:g}"
    good = largest <= best * slack
    yield Finding(case.properties[0], good, wanted, f"{largest:g}, with parts {_short(parts)}")


def smallest_maximum(costs: Sequence[float], num_devices: int) -> float:
    """The least that the largest of `num_devices` contiguous parts can cost, by trying every last cut."""
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = list(sums)  # one device: best[n] for the first n layers
    for _ in range(1, num_devices):
        best = [
            min((max(best[cut], sums[n] - sums[cut]) for cut in range(n)), default=0.0) if n else 0.0
            for n in range(len(sums))
        ]
    return best[-1]


def model_costs(draw: Random, num_layers: int) -> list[float]:
    """Costs such as a language model's: an embedding, layers much alike, and a heavy head."""
    layer = draw.uniform(1, 4)
    middle = [round(layer * draw.uniform(0.8, 1.2), 3) for _ in range(num_layers - 2)]
    return [round(draw.uniform(0, 6), 3), *middle, round(draw.uniform(2, 12), 3)]


def _short(value: Any, most: int = 160) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


# ---- the exercise


def partition_case(name: str, properties: tuple[str, ...], questions: list[Any], seed: int) -> Case:
    """Ask for each [costs, num_devices]; properties[0] is about how even the parts are."""
    return Case(name, 1, {"kind": "values", "questions": questions}, seed, properties, timeout=10)


def partition_refusals(name: str, questions: list[Any], names: list[str], seed: int) -> Case:
    """Questions that must be refused with a ValueError; names[i] is a word of the i-th message."""
    params = {"kind": "refusal", "questions": questions, "names": names}
    return Case(name, 1, params, seed, ("wrong-arguments",))


EVEN = ("smallest-maximum", "every-layer-once")


def _partition_cases(seed: int) -> list[Case]:
    draw = Random(f"02/partition/{seed}")
    random = [[[draw.randint(0, 20) for _ in range(n)], k] for n, k in ((5, 2), (7, 3), (10, 4), (9, 5))]
    models = [[model_costs(draw, n), k] for n, k in ((8, 3), (14, 4), (26, 8))]
    return [
        partition_case("worked example", EVEN, [[[1, 2, 3, 4, 5], 2], [[3, 1, 1, 1, 6], 3]], seed),
        partition_case("random costs", EVEN, random, seed),
        partition_case("language models", EVEN, models, seed),
        partition_case("300 layers", ("many-layers",), [[model_costs(draw, 300), 16]], seed),
        partition_case("few layers", ("few-layers",), [[[4, 2], 4], [[1.5], 1], [[0, 0, 0], 2]], seed),
        partition_refusals("refused", [[[1, 2], 0], [[1, -3, 2], 2]], ["0", "-3"], seed),
    ]


PARTITION = Exercise(
    "02.partition-layers",
    "Cut the layers where it is fair",
    ("partition_layers",),
    (
        Property(
            "smallest-maximum",
            "numbers",
            3,
            "No other contiguous cut has a smaller largest part.",
            "cutting by the number of layers, or as soon as the average is reached",
        ),
        Property(
            "every-layer-once",
            "mechanism",
            1,
            "Every layer is in exactly one part, in order, and there is one part a device.",
            "len(costs) // num_devices layers a device: the remainder is nobody's",
        ),
        Property(
            "many-layers",
            "mechanism",
            1,
            "300 layers on 16 devices take less than a few seconds.",
            "trying every combination of cuts: there are more than 10^25",
        ),
        Property(
            "few-layers",
            "robustness",
            1,
            "With fewer layers than devices some parts are empty; costs of 0 and one device work.",
            "a search that assumes at least one layer a device",
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "No device, or a negative cost, is refused with a ValueError that names the number.",
            "nothing is checked before the search starts",
        ),
    ),
    _partition_cases,
    no_inputs,
    ask_partitions,
    judge_partitions,
)
