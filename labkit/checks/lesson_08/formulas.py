"""Two exercises of lesson 08 that are arithmetic: a rank's bytes, and a step's traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Finding, Judge, Property
from labkit.checks.lesson_08.settings import (
    ANY_SEQUENCE,
    Setting,
    asks,
    each,
    each_is_refused,
    is_whole,
    refuses,
    settings_case,
    sizes_in_words,
)
from labkit.theory import sharding  # an empty file where this lesson is graded: judges alone call it
from labkit.theory.recipes import RECIPES

GIVEN = tuple(
    f"labkit.theory.sharding.{name}" for name in ("bytes_of_rank", "numbers_sent", "pieces_of_ranks")
)
HIDES = ("theory/sharding.py",)
STAGES = (0, 1, 2, 3)
MIXED, MEGATRON, NANOTRON = "mixed AdamW, 16 B", "mixed AdamW, 18 B", "mixed AdamW, 20 B"
SGD = "fp32 SGD"


# -- 08.rank-bytes


def _rank_bytes(student: Any, setting: Setting) -> object:
    numels, recipe, stage, world_size = setting
    return student.rank_bytes(numels, RECIPES[recipe], stage, world_size)


def _rank_in_words(setting: Setting) -> str:
    numels, recipe, stage, world_size = setting
    return f"units {sizes_in_words(numels)}, {recipe}, stage {stage}, {world_size} ranks"


def _parts(*names: str) -> Judge:
    def find(setting: Setting, seen: Any) -> Iterator[Finding]:
        numels, recipe, stage, world_size = setting
        expected = sharding.bytes_of_rank(numels, RECIPES[recipe], stage, world_size)
        for name in names:
            value = seen.get(name) if isinstance(seen, dict) else None
            told = f"{name}: {expected[name]:,} for {_rank_in_words(setting)}"
            yield Finding(value == expected[name], told, str(value))

    return each(find)


def _whole_bytes(setting: Setting, seen: Any) -> Iterator[Finding]:
    for name, value in seen.items() if isinstance(seen, dict) else ():
        told = f"{name}: a whole number (int) for {_rank_in_words(setting)}"
        yield Finding(is_whole(value), told, f"{value!r}, a {type(value).__name__}")


PARTS_AT_REST = ("weights", "gradients", "optimizer")
AT_REST, ALL_PARTS = _parts(*PARTS_AT_REST), _parts(*PARTS_AT_REST, "working")

RANK_BYTES = Exercise(
    "08.rank-bytes",
    "What one rank holds, to the byte",
    ("rank_bytes",),
    dict.fromkeys(("even", "padded", ANY_SEQUENCE), asks(_rank_bytes)) | {"refused": refuses(_rank_bytes)},
    lambda seed: rank_bytes_cases(seed, "", [12, 40, 24, 8], [7, 3, 30, 11]),
    (
        Property(
            "at-rest",
            "numbers",
            3,
            "Weights, gradients and optimizer of each stage, where sizes divide; all are whole numbers.",
            "stages 1, 2 and 3 shard one part more each: optimizer, then gradients, then weights",
            {"even": AT_REST},
            {"padded": each(_whole_bytes)},
        ),
        Property(
            "padding",
            "numbers",
            2,
            "The same where sizes do not divide, in any sequence: one flat tensor up to stage 1, one a unit"
            " from stage 2 on.",
            "n / d without rounding up, or one flat tensor for the model where each unit has its own",
            {"padded": AT_REST, ANY_SEQUENCE: ALL_PARTS},
        ),
        Property(
            "working",
            "numbers",
            2,
            "What is whole at the most crowded moment: a unit's gradient in stage 2; in stage 3 also its"
            " weights and those of the unit before it.",
            "the largest unit counted twice (its neighbour is what is fetched), or padding left out",
            {"even": _parts("working"), "padded": _parts("working")},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "Another stage, or no rank, is refused with a ValueError.",
            "a stage 4 that silently counts as 3",
            {"refused": each_is_refused(_rank_in_words)},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def rank_bytes_cases(seed: int, prefix: str, even: list[int], odd: list[int]) -> list[Case]:
    """even: units that 4 divides; odd: units that nothing divides."""
    model, large = [7_500_000_000], [3_000_000_019, 1_999_999_943, 12_000_000_007]
    table = [[model, MIXED, stage, d] for d in (1, 4, 64) for stage in STAGES]
    whole = [[even, recipe, stage, 4] for recipe in (MIXED, MEGATRON) for stage in STAGES]
    units = ((odd, 4), (odd[::-1], 3), ([2, 1], 8), ([*even, *odd], 2), ([31, 2, 9, 30], 2), (large, 1024))
    padded = [
        [of, recipe, stage, d]
        for of, d in units
        for recipe in (MIXED, MEGATRON, NANOTRON, SGD)
        for stage in STAGES
    ]
    few, unknown = [0, -1, -4], [-1, 4, 7]
    return [
        settings_case(f"{prefix}the model of ZeRO's Table 1", "even", table, seed),
        settings_case(f"{prefix}units that divide", "even", whole, seed),
        settings_case(f"{prefix}units that do not divide", "padded", padded, seed),
        settings_case(f"{prefix}units in a tuple", ANY_SEQUENCE, [[odd, MIXED, s, 4] for s in STAGES], seed),
        settings_case(f"{prefix}another stage", "refused", _bytes_refused(even, unknown, [1, 2, 5]), seed),
        settings_case(f"{prefix}no rank", "refused", _bytes_refused(even, STAGES, few), seed),
        settings_case(f"{prefix}neither", "refused", _bytes_refused(even, unknown, few), seed),
    ]


def _bytes_refused(units: list[int], stages: Sequence[int], ranks: Sequence[int]) -> list[Setting]:
    return [list(s) for s in product((units, [1]), (MIXED,), stages, ranks)]


# -- 08.step-traffic


def _step_traffic(student: Any, setting: Setting) -> object:
    """What is as it is when it is left out is left out."""
    numels, stage, world_size, micro_batches, regather = setting
    more = {} if micro_batches == 1 else {"micro_batches": micro_batches}
    more |= {} if regather else {"regather": False}
    return student.step_traffic(numels, stage, world_size, **more)


def _numbers(setting: Setting, seen: Any) -> Iterator[Finding]:
    expected = sharding.numbers_sent(*setting)
    yield Finding(seen == expected, f"{expected:,} for {_step_in_words(setting)}", str(seen))


def _step_in_words(setting: Setting) -> str:
    numels, stage, world_size, micro_batches, regather = setting
    about = (
        f"units {sizes_in_words(numels)}, stage {stage}, {world_size} ranks, {micro_batches} micro-batches"
    )
    return f"{about}, regather={regather}"


def _whole_traffic(setting: Setting, seen: Any) -> Iterator[Finding]:
    told = f"a whole number (int) for {_step_in_words(setting)}"
    yield Finding(is_whole(seen), told, f"{seen!r}, a {type(seen).__name__}")


TRAFFIC_KINDS = ("one", "several", "padded", "kept", ANY_SEQUENCE)

STEP_TRAFFIC = Exercise(
    "08.step-traffic",
    "What one rank sends",
    ("step_traffic",),
    dict.fromkeys(TRAFFIC_KINDS, asks(_step_traffic)) | {"refused": refuses(_step_traffic)},
    lambda seed: step_traffic_cases(seed, "", [12, 40, 24, 8], [7, 3, 30, 11]),
    (
        Property(
            "one-micro-batch",
            "numbers",
            2,
            "2, 2, 2 and 3 passes over the parameters for stages 0 to 3, of (d - 1) shards each; a whole"
            " number.",
            "an all-reduce is two passes; (d - 1)/d, not 1",
            {"one": each(_numbers)},
            {"padded": each(_whole_traffic)},
        ),
        Property(
            "micro-batches",
            "numbers",
            2,
            "Stages 0 and 1 send once a step; stage 2 scatters, and stage 3 gathers and scatters, for each"
            " micro-batch.",
            "stage 3's all-gathers counted once a step",
            {"several": each(_numbers)},
        ),
        Property(
            "padding",
            "numbers",
            1,
            "Padding is sent too: of the whole model up to stage 1, of each unit from stage 2 on, in any"
            " sequence of units.",
            "sum(numels) * (d - 1) // d",
            dict.fromkeys(("padded", ANY_SEQUENCE), each(_numbers)),
        ),
        Property(
            "without-regather",
            "numbers",
            1,
            "Weights that stay for backward are gathered once, in stage 3 alone.",
            "regather taken into account in other stages",
            {"kept": each(_numbers)},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "Another stage, no rank, or no micro-batch is refused with a ValueError.",
            "an else that takes every other stage for 3, or a range that is simply empty",
            {"refused": each_is_refused(_step_in_words)},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def step_traffic_cases(seed: int, prefix: str, even: list[int], odd: list[int]) -> list[Case]:
    """even: units that 4 divides; odd: units that nothing divides."""
    large = [3_000_000_019, 1_999_999_943, 12_000_000_007]
    one = [[even, stage, d, 1, True] for d in (1, 2, 4) for stage in STAGES]
    several = [[even, stage, 4, m, True] for m in (2, 3, 8) for stage in STAGES]
    ways = ((odd, 4, 1), (odd, 3, 5), (odd, 64, 2), (large, 1024, 96))
    padded = [[units, stage, d, m, True] for units, d, m in ways for stage in STAGES]
    kept = [list(s) for s in product((even, odd), STAGES, (1, 2, 3, 4, 16), (1, 3), (False,))]
    kept += [[large, stage, 1024, 96, False] for stage in STAGES]
    tuples = [[odd, stage, 4, 2, True] for stage in STAGES]
    any_way, some, few, unknown = (True, False), (1, 4), (0, -1, -3), (-1, 4, 7)
    another_stage = _traffic_refused(even, unknown, some, some, any_way)
    no_rank = _traffic_refused(even, STAGES, few, some, any_way)
    no_micro_batch = _traffic_refused(even, STAGES, some, few, any_way)
    nothing = _traffic_refused(even, STAGES, few, few, any_way)
    return [
        settings_case(f"{prefix}one micro-batch", "one", one, seed),
        settings_case(f"{prefix}several micro-batches", "several", several, seed),
        settings_case(f"{prefix}units that do not divide", "padded", padded, seed),
        settings_case(f"{prefix}units in a tuple", ANY_SEQUENCE, tuples, seed),
        settings_case(f"{prefix}weights that stay", "kept", kept, seed),
        settings_case(f"{prefix}another stage", "refused", another_stage, seed),
        settings_case(f"{prefix}no rank", "refused", no_rank, seed),
        settings_case(f"{prefix}no micro-batch", "refused", no_micro_batch, seed),
        settings_case(f"{prefix}neither", "refused", nothing, seed),
    ]


def _traffic_refused(units: list[int], *choices: Sequence[int]) -> list[Setting]:
    """choices: stages, ranks, micro-batches and regather, of which each is tried with each."""
    return [list(s) for s in product((units, [1]), *choices)]
