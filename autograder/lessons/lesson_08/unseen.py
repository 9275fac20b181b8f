"""Unseen cases of lesson 08: other sizes, optimizers, numbers of ranks and micro-batches, other groups."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from autograder.lessons.lesson_08.unseen_saves import checkpoint_cases
from labkit.checks.case import Case
from labkit.checks.lesson_08.adam import held_case
from labkit.checks.lesson_08.circumstances import some
from labkit.checks.lesson_08.formulas import MIXED, NANOTRON, STAGES, rank_bytes_cases, step_traffic_cases
from labkit.checks.lesson_08.gradients import bucket_case
from labkit.checks.lesson_08.gradients import watched_case as watched_buckets
from labkit.checks.lesson_08.layout import flat_layout_cases
from labkit.checks.lesson_08.masters import bf16_case
from labkit.checks.lesson_08.net import shard_case
from labkit.checks.lesson_08.norm import norm_case
from labkit.checks.lesson_08.settings import Setting, settings_case
from labkit.checks.lesson_08.units import unit_case
from labkit.checks.lesson_08.watched import calls_case
from labkit.checks.lesson_08.watched import watched_case as watched_units

PAIR_AND_ONE = [[0, 2], [1]]
NEIGHBOURS = [[2, 3], [0, 1]]
EVERY_OTHER = [[0, 2], [1, 3]]


def _sizes(draw: Random) -> tuple[list[int], list[int]]:
    """Units that 4 divides, and units that nothing divides."""
    even = [4 * draw.randint(1, 60) for _ in range(draw.randint(3, 6))]
    odd = [2 * draw.randint(1, 60) + 1 for _ in range(draw.randint(3, 6))]
    return even, odd


def _large(draw: Random) -> tuple[list[int], int]:
    """Many large units, and many ranks, which divide none of them."""
    ranks = draw.randint(65, 2048)
    units = [
        draw.randint(10**7, 10**10) * ranks + draw.randrange(1, ranks) for _ in range(draw.randint(8, 40))
    ]
    return [*units, 2**60 * ranks + 1], ranks  # the last one's share has digits that a float has not


def _rank_bytes(seed: int) -> list[Case]:
    draw = Random(f"08/bytes/{seed}")
    even, odd = _sizes(draw)
    large, ranks = _large(draw)
    return [
        *rank_bytes_cases(seed, "unseen: ", even, odd),
        settings_case("unseen: all is large", "padded", [[large, NANOTRON, s, ranks] for s in STAGES], seed),
        settings_case(
            "unseen: fewer ranks than none, drawn",
            "refused",
            [[odd, MIXED, stage, -draw.randint(1, 9)] for stage in STAGES],
            seed,
        ),
    ]


def _step_traffic(seed: int) -> list[Case]:
    draw = Random(f"08/traffic/{seed}")
    even, odd = _sizes(draw)
    large, ranks = _large(draw)
    many = [[large, stage, ranks, draw.randint(20, 200), True] for stage in STAGES]
    kept: list[Setting] = [
        [odd, stage, draw.randint(2, 40), draw.randint(1, 40), regather]
        for stage in STAGES
        for regather in (True, False, False)
    ]
    fewer = [[odd, stage, draw.randint(1, 9), -draw.randint(1, 9), True] for stage in STAGES]
    return [
        *step_traffic_cases(seed, "unseen: ", even, odd),
        settings_case("unseen: all is large", "padded", many, seed),
        settings_case("unseen: weights that stay, drawn", "kept", kept, seed),
        settings_case("unseen: fewer micro-batches than none, drawn", "refused", fewer, seed),
    ]


def _flat_layout(seed: int) -> list[Case]:
    draw = Random(f"08/layout/{seed}")
    few = [draw.choice([1, 2, 3, 5, 17, 40, 91]) for _ in range(draw.randint(3, 7))]
    many = [draw.randint(1100, 3000) for _ in range(draw.randint(4, 6))]
    layers = [draw.choice([0, 1, 70, 300, 900]) + 130 for _ in range(draw.randint(32, 48))]
    drawn = [[layers, draw.randint(5, 64)] for _ in range(4)]
    return [
        *flat_layout_cases(seed, "unseen: ", few, many),
        settings_case("unseen: many parameters on many ranks", "plain", drawn, seed),
    ]


def _net(draw: Random) -> dict[str, int]:
    return {"width": draw.randint(2, 5), "inner": draw.randint(3, 6), "rows": draw.randint(2, 5)}


def _optimizer(seed: int) -> list[Case]:
    draw = Random(f"08/optimizer/{seed}")
    return [
        shard_case("unseen: three ranks", "values", 3, seed, micro_batches=2, **_net(draw)),
        shard_case("unseen: float32", "values", 4, seed, dtype="float32", **_net(draw)),
        shard_case("unseen: Adagrad", "stateful", 4, seed, optimizer="adagrad", **_net(draw)),
        shard_case("unseen: momentum", "stateful", 2, seed, optimizer="momentum", **_net(draw)),
        shard_case(
            "unseen: gradients forgotten by the net",
            "stateful",
            3,
            seed,
            optimizer="momentum",
            net_forgets=True,
            **_net(draw),
        ),
        shard_case(
            "unseen: groups, momentum",
            "groups",
            4,
            seed,
            option_groups=True,
            optimizer="momentum",
            **_net(draw),
        ),
        shard_case(
            "unseen: a schedule, momentum",
            "schedule",
            3,
            seed,
            schedule=True,
            option_groups=True,
            optimizer="momentum",
            **_net(draw),
        ),
        *_masters(draw, seed),
        *_states(draw, seed),
        shard_case(
            "unseen: odd layers", "unusual", 4, seed, parts=["frozen", "tied", "side"], both=[[0, 3], [1]]
        ),
        shard_case("unseen: a rank without rows", "unusual", 4, seed, without_rows=[[0, 3]], **_net(draw)),
        shard_case("unseen: a pair and one", "subgroup", 3, seed, groups=PAIR_AND_ONE, **_net(draw)),
    ]


def _masters(draw: Random, seed: int) -> list[Case]:
    """Weights of 16 bits, beside frozen ones of another dtype."""
    return [
        bf16_case(
            "unseen: bf16", 4, seed, size=draw.randint(190, 260), frozen=draw.choice(["first", "last"])
        ),
        bf16_case("unseen: float16", 2, seed, size=200, dtype="float16"),
        bf16_case(
            "unseen: bf16 in two groups",
            3,
            seed,
            size=draw.randint(190, 260),
            groups_of_rates=True,
            frozen=draw.choice(["first", "last", "alone", "alone"]),
        ),
    ]


def _states(draw: Random, seed: int) -> list[Case]:
    """A rank's share and the whole are well apart: on two ranks only where a weight has two numbers of state,
    and no groups.
    """
    one, two = draw.choice(["momentum", "adagrad"]), draw.choice(["adam", "adamw"])
    widths, steps = range(30, 45), range(3, 8)
    first: dict[str, Any] = {"frozen": draw.random() < 0.5, "steps": draw.choice(steps)}
    then: dict[str, Any] = {"frozen": not first["frozen"], "steps": draw.choice(steps)}
    dtype, width = draw.choice(["float32", "float64"]), draw.choice(widths)
    return [
        held_case("unseen: one number of state", 3, seed, width, dtype, optimizer=one, **first),
        held_case(
            "unseen: state of groups",
            4,
            seed,
            draw.choice(widths),
            "float32",
            kind=draw.choice(["held", "held-unused"]),
            optimizer=two,
            in_groups=True,
            **then,
        ),
        held_case("unseen: state of bf16 weights", 2, seed, 36, "bfloat16", optimizer=two, **then),
        shard_case("unseen: your own flat_layout", "own-parts", 2, seed, option_groups=True, **_net(draw)),
    ]


def _gradients(seed: int) -> list[Case]:
    draw = Random(f"08/gradients/{seed}")
    return [
        bucket_case("unseen: three ranks", "values", 3, seed, micro_batches=2, **_net(draw)),
        bucket_case("unseen: a bucket a weight", "values", 4, seed, bucket_bytes=1, **_net(draw)),
        bucket_case("unseen: float32", "values", 2, seed, dtype="float32", bucket_bytes=90, **_net(draw)),
        bucket_case(
            "unseen: all of it used",
            draw.choice(["values", "unusual"]),
            draw.choice([2, 4]),
            seed,
            parts=draw.sample(["frozen", "half", "tied", "twice"], 2),
            dtype=draw.choice(["float32", "float64"]),
            bucket_bytes=draw.choice([80, 120, 200]),
            micro_batches=draw.randint(1, 3),
            **_net(draw),
        ),
        watched_buckets("unseen: two layers a bucket", 2, seed, 48, 16, 2),
        bucket_case(
            "unseen: unused here and there",
            "aside",
            4,
            seed,
            parts=["side", "unused", "ahead"],
            both=[[2], [], [0, 1, 3]],
            **_net(draw),
        ),
        bucket_case(
            "unseen: small buckets",
            "aside",
            3,
            seed,
            parts=["side"],
            both=[[0, 2]],
            bucket_bytes=1,
            micro_batches=draw.randint(2, 3),
            gathers_between=draw.random() < 0.5,
            **_net(draw),
        ),
        bucket_case(
            "unseen: odd layers",
            "unusual",
            3,
            seed,
            parts=["frozen", "tied", "twice"],
            in_eval=draw.random() < 0.5,
            **_net(draw),
        ),
        bucket_case("unseen: a pair and one", "subgroup", 3, seed, groups=PAIR_AND_ONE, **_net(draw)),
    ]


def _calls(draw: Random, layers: int) -> list[int]:
    """Numbers of layers: one in the middle left out, an earlier one called again a few layers behind it."""
    skipped = draw.randint(4, layers - 7)
    first, then = range(skipped), range(skipped + 1, layers - 3)
    return [*first, *then, draw.randint(1, skipped - 2), *range(layers - 3, layers)]


def _every_other(draw: Random, layers: int) -> list[int]:
    """Numbers of layers: every other one left out, and one called a second time near the end."""
    calls = [*range(draw.randint(0, 1), layers, 2)]
    return [*calls[:-3], draw.choice(calls[1:-4]), *calls[-3:]]


def _nesting(draw: Random) -> str:
    """Lists, tuples and dicts, one in the other, at most three deep."""
    return "".join(draw.choices("ltd", k=draw.randint(0, 3)))


def _watched(draw: Random, seed: int) -> list[Case]:
    """Stacks of equal layers, whose weights and calls are watched."""
    return [
        watched_units("unseen: twenty layers", 2, seed, 48, 20, 1, **some(draw)),
        watched_units("unseen: nothing ahead", 4, seed, 64, 14, 0, **some(draw)),
        watched_units("unseen: three ahead, interrupted", 2, seed, 64, 14, 3, interrupted=True, **some(draw)),
        watched_units(
            "unseen: frozen layers", 4, seed, 64, 14, 2, "watched-frozen", frozen=[2, 6, 7], **some(draw)
        ),
        watched_units(
            "unseen: bf16 layers", 4, seed, 64, 14, 0, "watched-bf16", dtype="bfloat16", **some(draw)
        ),
        calls_case(
            "unseen: a unit skipped, one called again", 2, seed, 64, 14, _calls(draw, 14), **some(draw)
        ),
        calls_case("unseen: every other unit", 4, seed, 48, 32, _every_other(draw, 32), **some(draw)),
    ]


def _module(seed: int) -> list[Case]:
    draw = Random(f"08/module/{seed}")
    frozen = ["early", "half", "frozen"]
    every_part = ["two", "side", "tied", "twice", "frozen"]
    return [
        unit_case("unseen: three ranks", "values", 3, seed, micro_batches=2, **_net(draw)),
        unit_case(
            "unseen: two ahead",
            "values",
            2,
            seed,
            prefetch=2,
            parts=["two"],
            nesting=_nesting(draw),
            **_net(draw),
        ),
        unit_case("unseen: float32", "values", 4, seed, dtype="float32", **_net(draw)),
        *_watched(draw, seed),
        unit_case("unseen: three at once", "together", 3, seed, micro_batches=3, prefetch=2, **_net(draw)),
        unit_case("unseen: tied", "tied", 3, seed, parts=["tied", "twice"], prefetch=0, **_net(draw)),
        unit_case("unseen: called twice", "twice", 2, seed, parts=["twice", "frozen"], **_net(draw)),
        unit_case(
            "unseen: frozen", "frozen", 4, seed, parts=frozen, prefetch=2, micro_batches=2, **_net(draw)
        ),
        unit_case(
            "unseen: everything at once", "aside", 4, seed, parts=every_part, both=[[0, 2]], **_net(draw)
        ),
        bf16_case("unseen: bf16", 2, seed, size=draw.randint(190, 260), micro_batches=3),
        unit_case("unseen: evaluation", "evaluated", 3, seed, micro_batches=2, dtype="float32", **_net(draw)),
        unit_case("unseen: a pair and one", "subgroup", 3, seed, groups=PAIR_AND_ONE, **_net(draw)),
        unit_case(
            "unseen: given back",
            "tiny",
            2,
            seed,
            parts=["same", *draw.sample(["kept", "passed", "through"], 2)],
            nesting=_nesting(draw),
            prefetch=0,
            **_net(draw),
        ),
    ]


def _norm(seed: int) -> list[Case]:
    draw = Random(f"08/norm/{seed}")
    totals = [draw.randint(3, 40) for _ in range(3)]
    return [
        norm_case(
            "unseen: three ranks",
            "values",
            3,
            seed,
            totals=[3 * t for t in totals],
            calls=draw.randint(4, 9),
            in_one=True,
        ),
        norm_case(
            "unseen: float32, which cannot hold their squares",
            "values",
            2,
            seed,
            totals=[2 * t for t in totals],
            dtype="float32",
            scale=1e20,
            max_norm=1e19,
            in_one=draw.random() < 0.5,
        ),
        norm_case(
            "unseen: small norm", "values", 3, seed, totals=[3, 6], max_norm=50.0, calls=draw.randint(1, 4)
        ),
        norm_case("unseen: hardly above", "values", 3, seed, totals=[9, 6], above=1.004),
        norm_case("unseen: padded", "padded", 4, seed, totals=[4 * t + 1 for t in totals]),
        norm_case("unseen: whole ones", "replicated", 4, seed, replicated=totals, max_norm=1.5),
        norm_case(
            "unseen: no shards",
            "empty",
            3,
            seed,
            totals=[],
            replicated=_shapes(draw),
            unused=[1],
            transposed=[2],
        ),
        norm_case("unseen: nearly nothing", "empty", 4, seed, totals=[1, 3], missing=[[1, 0], [1, 1]]),
        norm_case("unseen: neighbours", "subgroup", 4, seed, groups=NEIGHBOURS, totals=[7, 5]),
        norm_case("unseen: every other rank", "subgroup", 4, seed, groups=EVERY_OTHER, replicated=[4]),
    ]


def _shapes(draw: Random) -> list[list[int]]:
    """Of no dimension up to five, one of them without elements."""
    shapes = [[draw.randint(1, 4) for _ in range(dimensions)] for dimensions in range(6)]
    draw.choice(shapes[1:])[0] = 0
    return draw.sample(shapes, len(shapes))


CASES: dict[str, Callable[[int], list[Case]]] = {
    "08.rank-bytes": _rank_bytes,
    "08.step-traffic": _step_traffic,
    "08.flat-layout": _flat_layout,
    "08.sharded-optimizer": _optimizer,
    "08.sharded-gradients": _gradients,
    "08.fully-sharded-module": _module,
    "08.global-grad-norm": _norm,
    "08.sharded-checkpoint": checkpoint_cases,
}
