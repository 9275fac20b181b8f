"""What `FullyShardedModule` is tried on: modules whose layers are units."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.lesson_08.circumstances import ALL
from labkit.checks.lesson_08.masters import bf16_case
from labkit.checks.lesson_08.net import PAIRS, shard_case
from labkit.checks.lesson_08.watched import watched_case


def module_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        *_cases_of_values(seed),
        *_cases_of_memory(seed),
        *_cases_of_sharing(seed),
        *_frozen_cases(seed),
        unit_case("a weight one rank does not use", "aside", 3, seed, parts=["side"], both=[[1], [0, 2]]),
        unit_case("a unit of which one uses no weight", "aside", 2, seed, parts=["detour"], both=[[1], [0]]),
        bf16_case("bf16 weights", 3, seed, size=211, micro_batches=2),
        unit_case("evaluation between steps", "evaluated", 2, seed, parts=["twice"]),
        *_cases_of_small_and_homeless(seed),
        unit_case("two groups of two ranks", "subgroup", 4, seed, groups=PAIRS),
        unit_case("one rank", "values", 1, seed, prefetch=9),
    ]


def _cases_of_values(seed: int) -> list[Case]:
    return [
        unit_case(
            "two ranks, and another module in each backward", "values", 2, seed, late=[1], another=True
        ),
        unit_case("several micro-batches", "values", 4, seed, micro_batches=3, late=[0]),
        unit_case("three ranks, nothing fetched ahead", "values", 3, seed, prefetch=0),
        unit_case(
            "several inputs and outputs",
            "values",
            2,
            seed,
            parts=["two", "side"],
            both=[[], [0, 1]],
            nesting="tl",
        ),
    ]


def _cases_of_memory(seed: int) -> list[Case]:
    return [
        watched_case("sixteen equal layers", 2, seed, 64, 16, 1),
        watched_case("on four ranks, nothing fetched ahead", 4, seed, 48, 16, 0),
        watched_case("two units fetched ahead, later and with biases", 2, seed, 48, 16, 2, **ALL),
        watched_case("some layers frozen", 2, seed, 48, 16, 1, "watched-frozen", frozen=[4, 5, 9, 12]),
        watched_case("layers in bf16", 2, seed, 64, 16, 1, "watched-bf16", dtype="bfloat16"),
        watched_case("all that the process holds", 2, seed, 192, 8, 1, kind="process"),
    ]


def _cases_of_sharing(seed: int) -> list[Case]:
    return [
        unit_case("two units that share a weight", "tied", 2, seed, parts=["tied"], micro_batches=2),
        unit_case("a unit that has nothing of its own", "tied", 3, seed, parts=["tied", "borrowed"]),
        unit_case("a unit that is called twice", "twice", 3, seed, parts=["twice"], micro_batches=2),
        unit_case("a module that is called twice", "together", 2, seed, parts=["twice"], micro_batches=2),
    ]


def _frozen_cases(seed: int) -> list[Case]:
    return [
        unit_case(
            "a frozen unit, half a one, and one nobody uses",
            "frozen",
            2,
            seed,
            parts=["early", "frozen", "half", "unused"],
            micro_batches=2,
        ),
        unit_case(
            "frozen ends, and a unit used now and then",
            "frozen",
            2,
            seed,
            parts=["early", "late", "skipped"],
            both=[[0, 1], []],
            input_grad=False,
            micro_batches=2,
        ),
        unit_case(
            "the last unit alone is trained",
            "frozen",
            2,
            seed,
            parts=["head"],
            input_grad=False,
        ),
    ]


def _cases_of_small_and_homeless(seed: int) -> list[Case]:
    return [
        unit_case("fewer numbers than ranks", "tiny", 4, seed, width=1, inner=1),
        unit_case(
            "a unit without weights",
            "tiny",
            2,
            seed,
            parts=["bare", "same", "kept"],
            nesting="l",
            micro_batches=2,
        ),
        unit_case(
            "a unit that hands on what it was given",
            "tiny",
            2,
            seed,
            parts=["passed", "through"],
            nesting="dl",
        ),
        unit_case("a unit that was forgotten", "homeless", 2, seed),
        unit_case("a frozen one", "homeless", 2, seed, parts=["frozen"], forgotten="frozen"),
        unit_case("a weight of the module itself", "homeless", 2, seed, parts=["own"], forgotten="scale"),
    ]


def unit_case(name: str, kind: str, ranks: int, seed: int, **params: object) -> Case:
    """The small net, of which each layer is a unit."""
    return shard_case(name, kind, ranks, seed, **{"prefetch": 1, **params})
