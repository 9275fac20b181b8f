"""The three exercises of lesson 08 that are arithmetic: a rank's bytes, a step's traffic, who owns what."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory import sharding  # an empty file where this lesson is graded: judges alone call it
from labkit.theory.recipes import RECIPES

Setting = list[Any]
GIVEN = tuple(
    f"labkit.theory.sharding.{name}" for name in ("bytes_of_rank", "numbers_sent", "pieces_of_ranks")
)
HIDES = ("theory/sharding.py",)
MIXED, MEGATRON, SGD = "mixed AdamW, 16 B", "mixed AdamW, 18 B", "fp32 SGD"


def settings_case(name: str, kind: str, settings: Sequence[Setting], seed: int) -> Case:
    """Arguments of as many calls as there are settings."""
    return Case(name, 1, {"settings": [list(s) for s in settings]}, seed, kind=kind)


def _plain(value: object) -> JSON:
    """What a function gave, as JSON can hold it; numbers, numpy's and torch's too, as they are, anything else
    in words.
    """
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return number_or_words(value)


def _asks(call: Callable[[Any, Setting], object]) -> Run:
    """Calls the student's function once a setting. Facts: answers, and whether settings were changed."""

    def on_rank(rank: Rank) -> None:
        handed = copy.deepcopy(rank.params["settings"])
        rank.fact("answers", [_plain(call(rank.student, setting)) for setting in handed])
        rank.fact("changed", handed != rank.params["settings"])

    return Run(on_rank)


def _refuses(call: Callable[[Any, Setting], object]) -> Run:
    """Calls it with what it must refuse, one setting a case. Fact: refusal."""

    def on_rank(rank: Rank) -> None:
        (setting,) = rank.params["settings"]
        with rank.expect_error("refusal"):
            call(rank.student, setting)

    return Run(on_rank)


def _each(find: Callable[[Setting, Any], Iterator[Finding]]) -> Judge:
    """A judge of every setting's answer."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        answers = evidence.answers[0].facts["answers"]
        for setting, seen in zip(evidence.case.params["settings"], answers, strict=True):
            yield from find(setting, seen)

    return judge


# -- 08.rank-bytes


def _rank_bytes(student: Any, setting: Setting) -> object:
    numels, recipe, stage, world_size = setting
    return student.rank_bytes(list(numels), RECIPES[recipe], stage, world_size)


def _parts(*names: str) -> Judge:
    def find(setting: Setting, seen: Any) -> Iterator[Finding]:
        numels, recipe, stage, world_size = setting
        expected = sharding.bytes_of_rank(numels, RECIPES[recipe], stage, world_size)
        about = f"units {_short(numels)}, {recipe}, stage {stage}, {world_size} ranks"
        for name in names:
            value = seen.get(name) if isinstance(seen, dict) else None
            yield Finding(value == expected[name], f"{name}: {expected[name]:,} for {about}", str(value))

    return _each(find)


def _short(numels: Sequence[int]) -> str:
    return str(list(numels)) if len(numels) < 7 else f"of {sum(numels):,} parameters in {len(numels)} layers"


AT_REST = _parts("weights", "gradients", "optimizer")

RANK_BYTES = Exercise(
    "08.rank-bytes",
    "What one rank holds, to the byte",
    ("rank_bytes",),
    {"even": _asks(_rank_bytes), "padded": _asks(_rank_bytes), "refused": _refuses(_rank_bytes)},
    lambda seed: rank_bytes_cases(seed, "", [12, 40, 24, 8], [7, 3, 30, 11]),
    (
        Property(
            "at-rest",
            "numbers",
            3,
            "Weights, gradients and optimizer of each stage, where sizes divide.",
            "stages 1, 2 and 3 shard one part more each: optimizer, then gradients, then weights",
            {"even": AT_REST},
        ),
        Property(
            "padding",
            "numbers",
            2,
            "The same where sizes do not divide: one flat tensor up to stage 1, one a unit from stage 2 on.",
            "n / d without rounding up, or one flat tensor for the model where each unit has its own",
            {"padded": AT_REST},
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
            {"refused": is_refused("refusal", "ValueError")},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def rank_bytes_cases(seed: int, prefix: str, even: list[int], odd: list[int]) -> list[Case]:
    """even: units that 4 divides; odd: units that nothing divides."""
    model = [7_500_000_000]
    table = [[model, MIXED, stage, d] for d in (1, 4, 64) for stage in (0, 1, 2, 3)]
    whole = [[even, recipe, stage, 4] for recipe in (MIXED, MEGATRON) for stage in (0, 1, 2, 3)]
    padded = [
        [units, recipe, stage, d]
        for units, d in ((odd, 4), (odd[::-1], 3), ([2, 1], 8), ([*even, *odd], 2), ([31, 2, 9, 30], 2))
        for recipe in (MIXED, SGD)
        for stage in (0, 1, 2, 3)
    ]
    return [
        settings_case(f"{prefix}the model of ZeRO's Table 1", "even", table, seed),
        settings_case(f"{prefix}units that divide", "even", whole, seed),
        settings_case(f"{prefix}units that do not divide", "padded", padded, seed),
        settings_case(f"{prefix}a stage 4", "refused", [[even, MIXED, 4, 2]], seed),
        settings_case(f"{prefix}a stage below 0", "refused", [[even, MIXED, -1, 2]], seed),
        settings_case(f"{prefix}no rank", "refused", [[even, MIXED, 1, 0]], seed),
        settings_case(f"{prefix}fewer ranks than none", "refused", [[even, MIXED, 0, -2]], seed),
    ]


# -- 08.step-traffic


def _step_traffic(student: Any, setting: Setting) -> object:
    """What is as it is when it is left out is left out."""
    numels, stage, world_size, micro_batches, regather = setting
    more = {} if micro_batches == 1 else {"micro_batches": micro_batches}
    more |= {} if regather else {"regather": False}
    return student.step_traffic(list(numels), stage, world_size, **more)


def _numbers(setting: Setting, seen: Any) -> Iterator[Finding]:
    expected = sharding.numbers_sent(*setting)
    numels, stage, world_size, micro_batches, regather = setting
    about = f"units {_short(numels)}, stage {stage}, {world_size} ranks, {micro_batches} micro-batches"
    yield Finding(seen == expected, f"{expected:,} for {about}, regather={regather}", str(seen))


TRAFFIC_KINDS = ("one", "several", "padded", "kept")

STEP_TRAFFIC = Exercise(
    "08.step-traffic",
    "What one rank sends",
    ("step_traffic",),
    dict.fromkeys(TRAFFIC_KINDS, _asks(_step_traffic)) | {"refused": _refuses(_step_traffic)},
    lambda seed: step_traffic_cases(seed, "", [12, 40, 24, 8], [7, 3, 30, 11]),
    (
        Property(
            "one-micro-batch",
            "numbers",
            2,
            "2, 2, 2 and 3 passes over the parameters for stages 0 to 3, of (d - 1) shards each.",
            "an all-reduce is two passes; (d - 1)/d, not 1",
            {"one": _each(_numbers)},
        ),
        Property(
            "micro-batches",
            "numbers",
            2,
            "Stages 0 and 1 send once a step; stage 2 scatters, and stage 3 gathers and scatters, for each"
            " micro-batch.",
            "stage 3's all-gathers counted once a step",
            {"several": _each(_numbers)},
        ),
        Property(
            "padding",
            "numbers",
            1,
            "Padding is sent too: of the whole model up to stage 1, of each unit from stage 2 on.",
            "sum(numels) * (d - 1) // d",
            {"padded": _each(_numbers)},
        ),
        Property(
            "without-regather",
            "numbers",
            1,
            "Weights that stay for backward are gathered once, in stage 3 alone.",
            "regather taken into account in other stages",
            {"kept": _each(_numbers)},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "Another stage, no rank, or no micro-batch is refused with a ValueError.",
            "an else that takes every other stage for 3, or a range that is simply empty",
            {"refused": is_refused("refusal", "ValueError")},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def step_traffic_cases(seed: int, prefix: str, even: list[int], odd: list[int]) -> list[Case]:
    """even: units that 4 divides; odd: units that nothing divides."""
    stages = (0, 1, 2, 3)
    one = [[even, stage, d, 1, True] for d in (1, 2, 4) for stage in stages]
    several = [[even, stage, 4, m, True] for m in (2, 3, 8) for stage in stages]
    padded = [[odd, stage, d, m, True] for d, m in ((4, 1), (3, 5), (64, 2)) for stage in stages]
    kept = [[units, stage, 4, m, False] for units in (even, odd) for m in (1, 3) for stage in stages]
    return [
        settings_case(f"{prefix}one micro-batch", "one", one, seed),
        settings_case(f"{prefix}several micro-batches", "several", several, seed),
        settings_case(f"{prefix}units that do not divide", "padded", padded, seed),
        settings_case(f"{prefix}weights that stay", "kept", kept, seed),
        settings_case(f"{prefix}a stage below 0", "refused", [[even, -1, 2, 1, True]], seed),
        settings_case(f"{prefix}a stage 4", "refused", [[even, 4, 2, 1, True]], seed),
        settings_case(f"{prefix}no rank", "refused", [[even, 0, 0, 1, True]], seed),
        settings_case(f"{prefix}fewer ranks than none", "refused", [[even, 3, -1, 1, True]], seed),
        settings_case(f"{prefix}no micro-batch", "refused", [[even, 0, 2, 0, True]], seed),
    ]


# -- 08.flat-layout


def _flat_layout(student: Any, setting: Setting) -> object:
    numels, world_size = setting
    return student.flat_layout(numels, world_size)


def _shard_size(setting: Setting, seen: Any) -> Iterator[Finding]:
    size, _ = sharding.pieces_of_ranks(*setting)
    found = seen[0] if isinstance(seen, list) and len(seen) == 2 else seen
    yield Finding(found == size, f"shards of {size} for {setting[0]} on {setting[1]} ranks", str(found))


def _owned(setting: Setting, seen: Any) -> Iterator[Finding]:
    _, pieces = sharding.pieces_of_ranks(*setting)
    found = seen[1] if isinstance(seen, list) and len(seen) == 2 else seen
    about = f"{setting[0]} on {setting[1]} ranks"
    yield Finding(found == [[list(p) for p in own] for own in pieces], f"{pieces} for {about}", str(found))


def _numels_stay(evidence: Evidence) -> Iterator[Finding]:
    changed = evidence.answers[0].facts["changed"]
    yield Finding(not changed, "numels as they were handed over", "they were changed" if changed else "")


FLAT_LAYOUT = Exercise(
    "08.flat-layout",
    "Who owns which slice of which parameter",
    ("flat_layout",),
    dict.fromkeys(("plain", "few", "empty"), _asks(_flat_layout)) | {"refused": _refuses(_flat_layout)},
    lambda seed: flat_layout_cases(seed, "", [12, 4, 30, 1, 3]),
    (
        Property(
            "shard-size",
            "numbers",
            1,
            "A shard has ceil(N / d) elements.",
            "N // d, which loses the last elements",
            {"plain": _each(_shard_size), "few": _each(_shard_size)},
        ),
        Property(
            "pieces",
            "numbers",
            3,
            "Every element belongs to the rank its place in the flat tensor says, in order, and numels stays"
            " as it is.",
            "a parameter that spans three shards, or offsets that count parameters",
            {"plain": every(_each(_owned), _numels_stay)},
        ),
        Property(
            "fewer-elements-than-ranks",
            "robustness",
            1,
            "Ranks that have padding only own nothing.",
            "empty pieces in the list, or fewer lists than ranks",
            {"few": _each(_owned)},
        ),
        Property(
            "empty-parameters",
            "robustness",
            1,
            "A parameter without elements is in no piece; no elements at all are no error: shards of 0.",
            "a division by a shard size of 0",
            {"empty": every(_each(_shard_size), _each(_owned))},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "No rank is refused with a ValueError.",
            "a ZeroDivisionError, or Python's modulo that takes a negative number of ranks",
            {"refused": is_refused("refusal", "ValueError")},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def flat_layout_cases(seed: int, prefix: str, numels: list[int]) -> list[Case]:
    """numels: parameters of sizes that differ widely."""
    plain = [[units, d] for units in (numels, numels[::-1], [5, 5, 5], [1] * 7) for d in (1, 2, 3, 4)]
    few = [[[1, 2], 5], [[1], 3], [[2, 2], 8], [[3, 2], 4]]
    empty = [[[0, 4, 0, 3, 0], 2], [[0, 0], 3], [[], 2]]
    return [
        settings_case(f"{prefix}parameters of many sizes", "plain", plain, seed),
        settings_case(f"{prefix}fewer elements than ranks", "few", few, seed),
        settings_case(f"{prefix}parameters without elements", "empty", empty, seed),
        settings_case(f"{prefix}no rank", "refused", [[numels, 0]], seed),
        settings_case(f"{prefix}fewer ranks than none", "refused", [[numels, -1]], seed),
    ]
