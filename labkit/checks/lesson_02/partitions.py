"""Cutting a list of layers into contiguous parts: what its check asks, and the best that can be done."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.rank import Rank

ROUNDING = 1 + 1e-9
RANGES = "a list of ranges"
NEARLY_EQUAL = [[[100_000_001, 50_000_000, 100_000_003], 2], [[100_000_003, 50_000_000, 100_000_001], 2]]
# where the cut of the least sum of squares has a larger part than there need be
NOT_OF_LEAST_SQUARES = [[3.21, 4.92, 4.68, 1.43, 1.61, 1.64, 4.59, 6.86, 1.3], 5]
NEAR_ENOUGH = 1.3  # where a case asks for something else than the best cut, before the best one is asked for
A_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?", re.IGNORECASE)
AS_PRINTED = 1e-5  # relative: `:g` has six digits


def ask_partitions(rank: Rank) -> None:
    """Call `partition_layers` with each of the case's questions [costs, num_devices], with a tuple of costs
    every second time. Facts: parts; kinds, what each answer is.
    """
    parts, kinds = [], []
    for number, (costs, num_devices) in enumerate(rank.params["questions"]):
        given = tuple(costs) if number % 2 else list(costs)
        answer = rank.student.partition_layers(given, num_devices)
        kinds.append(_kind(answer))
        parts.append(_plain(answer))
        if list(given) != list(costs):
            raise ValueError("partition_layers changed the list of costs it was given")
    rank.fact("parts", parts)
    rank.fact("kinds", kinds)


def ask_the_impossible(rank: Rank) -> None:
    """Ask what must be refused. Facts: refusal N."""
    for index, (costs, num_devices) in enumerate(rank.params["questions"]):
        with rank.expect_error(f"refusal {index}"):
            rank.student.partition_layers(list(costs), num_devices)


def _kind(answer: Any) -> str:
    """What the answer is, in words: `RANGES`, or what stands in their place."""
    if not isinstance(answer, list | tuple):
        return f"a {type(answer).__name__}"
    others = sorted({type(part).__name__ for part in answer if not isinstance(part, range)})
    return f"a {type(answer).__name__} with {', '.join(others)}" if others else RANGES


def _plain(parts: Any) -> JSON:
    return [[int(index) for index in part] for part in parts]


RUNS = {
    **dict.fromkeys(("even", "many-layers", "few-layers"), Run(ask_partitions)),
    "refused": Run(ask_the_impossible),
}


# -- judges


def each_layer_once(evidence: Evidence) -> Iterator[Finding]:
    """Every layer is in one part, in order, and there is a part for each device."""
    for (costs, num_devices), parts in _answered(evidence):
        told = f"{num_devices} parts that hold layers 0 to {len(costs) - 1}, each once, in order"
        asked = f"{_short(costs)} on {num_devices} devices"
        yield Finding(_is_whole(costs, num_devices, parts), f"{asked}: {told}", f"parts {_short(parts)}")
    for kind in evidence.answers[0].facts["kinds"]:
        yield Finding(kind == RANGES, RANGES, kind)


def largest_is_least(evidence: Evidence, slack: float = ROUNDING) -> Iterator[Finding]:
    """No other cut has a much smaller largest part."""
    for (costs, num_devices), parts in _answered(evidence):
        best, largest = smallest_maximum(costs, num_devices), math.inf
        if _is_whole(costs, num_devices, parts):
            largest = max((sum(costs[index] for index in part) for part in parts), default=0.0)
        room = "not much more than " if slack > ROUNDING else ""
        told = f"{_short(costs)} on {num_devices} devices: the largest part costs {room}{best:g}"
        yield Finding(largest <= best * slack, told, f"{largest:g}, with parts {_short(parts)}")


cuts_sensibly = every(each_layer_once, partial(largest_is_least, slack=NEAR_ENOUGH))


def each_is_refused(evidence: Evidence) -> Iterator[Finding]:
    """Each question met a ValueError that names the number that is wrong with it."""
    for index, (costs, num_devices) in enumerate(evidence.case.params["questions"]):
        seen = evidence.answers[0].facts[f"refusal {index}"]
        number = wrong_number_in(costs, num_devices)
        right = "ValueError" in (seen.get("kinds") or ()) and _names(seen["message"], number)
        said = f"{seen['raised']}: {seen['message']}" if seen["raised"] else "no error"
        told = f"a ValueError that names {number}, for {_short(costs)} on {num_devices} devices"
        yield Finding(right, told, said)


def wrong_number_in(costs: Sequence[float], num_devices: int) -> float:
    """What a question is refused for: too few devices, or the cost that is negative."""
    return num_devices if num_devices < 1 else min(costs)


def _names(message: str, number: float) -> bool:
    """Whether a number stands in a message, however it is written."""
    return any(math.isclose(float(n), number, rel_tol=AS_PRINTED) for n in A_NUMBER.findall(message))


def _answered(evidence: Evidence) -> Iterator[tuple[Any, list[list[int]]]]:
    return zip(evidence.case.params["questions"], evidence.answers[0].facts["parts"], strict=True)


def _is_whole(costs: Sequence[float], num_devices: int, parts: Sequence[Sequence[int]]) -> bool:
    placed = [index for part in parts for index in part]
    return len(parts) == num_devices and placed == list(range(len(costs)))


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


def _other_units(questions: Sequence[Any]) -> list[Any]:
    """The same questions with costs in nanoseconds, told in seconds, and in GiB, told in bytes; the first in
    femtoseconds too; and some whose best cut is better by a few bytes.
    """
    seconds = [[[cost * 1e-9 for cost in costs], k] for costs, k in questions]
    seconds += [[[cost * 1e-15 for cost in costs], k] for costs, k in questions[:1]]
    in_bytes = [[[int(cost * 2**30) for cost in costs], k] for costs, k in questions]
    return [*seconds, *in_bytes, *NEARLY_EQUAL]


def _short(value: Any, most: int = 160) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def partition_case(name: str, kind: str, questions: list[Any], seed: int) -> Case:
    """Ask for each [costs, num_devices]."""
    return Case(name, 1, {"questions": questions}, seed, timeout=10, kind=kind)


def partition_refusals(name: str, questions: list[Any], seed: int) -> Case:
    """Questions that must be refused with a ValueError: each has one number that is wrong."""
    return Case(name, 1, {"questions": questions}, seed, kind="refused")


def _partition_cases(seed: int) -> list[Case]:
    draw = Random(f"02/partition/{seed}")
    random = [[[draw.randint(0, 20) for _ in range(n)], k] for n, k in ((5, 2), (7, 3), (10, 4), (9, 5))]
    models = [[model_costs(draw, n), k] for n, k in ((8, 3), (14, 4), (26, 8))]
    large = [[model_costs(draw, n), k] for n, k in ((60, 4), (300, 16))]
    few = [[[4, 2], 4], [[1.5], 1], [[0, 0, 0], 2], [[], 2]]
    refused = [
        [[1, 2], 0],
        [[], 0],
        [[1, -3, 2], 2],
        [[1, -0.5], 2],
        [[-7, 2], 1],
        [[-4], 3],
        [[1, -1e-6], 2],
    ]
    return [
        partition_case("worked example", "even", [[[1, 2, 3, 4, 5], 2], [[3, 1, 1, 1, 6], 3]], seed),
        partition_case("random costs", "even", [*random, NOT_OF_LEAST_SQUARES], seed),
        partition_case("language models", "even", models, seed),
        partition_case("seconds, and bytes", "even", _other_units(models), seed),
        partition_case("60 and 300 layers", "many-layers", large, seed),
        partition_case("few layers", "few-layers", few, seed),
        partition_refusals("refused", refused, seed),
    ]


EXERCISE = Exercise(
    "02.partition-layers",
    "Cut the layers where it is fair",
    ("partition_layers",),
    RUNS,
    _partition_cases,
    (
        Property(
            "smallest-maximum",
            "numbers",
            3,
            "No other contiguous cut has a smaller largest part.",
            "cutting by the number of layers, or as soon as the average is reached",
            {"even": largest_is_least},
            dict.fromkeys(("many-layers", "few-layers"), largest_is_least),
        ),
        Property(
            "every-layer-once",
            "mechanism",
            1,
            "Every layer is in exactly one part, in order, and there is one part a device, each a range.",
            "len(costs) // num_devices layers a device: the remainder is nobody's",
            {"even": each_layer_once},
        ),
        Property(
            "many-layers",
            "mechanism",
            1,
            "300 layers on 16 devices take less than a few seconds.",
            "trying every combination of cuts: there are more than 10^25",
            {"many-layers": cuts_sensibly},
        ),
        Property(
            "few-layers",
            "robustness",
            1,
            "With fewer layers than devices some parts are empty, and all are without layers; costs of 0 and"
            " one device work.",
            "a search that assumes at least one layer a device",
            {"few-layers": cuts_sensibly},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "No device, or a negative cost, is refused with a ValueError that names the number.",
            "nothing is checked before the search starts",
            {"refused": each_is_refused},
        ),
    ),
)
