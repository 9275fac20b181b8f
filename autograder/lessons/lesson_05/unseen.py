"""Unseen cases of lesson 05: other functions, sizes and chains, and the formulas' answers worked out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_05.formulas import best_row, memory_row
from labkit.checks.lesson_05.one_call import checkpoint_case
from labkit.checks.lesson_05.subjects import BOTH, CALLED
from labkit.checks.lesson_05.whole_chain import DEEP_CHAIN, chain_case
from labkit.checks.shared.formula import values_case

WIDE = {"rows": 64, "width": 24, "inner": 80}  # of a chain of layers


def _checkpoint_cases(seed: int) -> list[Case]:
    draw = Random(f"05/checkpoint/{seed}")
    sizes = {"rows": draw.randint(2, 9), "width": draw.randint(2, 9), "inner": draw.randint(3, 11)}
    large = {"rows": 64, "width": 24, "inner": 256}
    # No larger than where values alone are seen: what is kept of them counts all the same.
    narrow = {"rows": draw.randint(14, 20), "width": draw.randint(4, 9), "inner": 256}
    autocast, quiet = {"rows": 128, "width": 64, "inner": 256}, large | {"training": False}
    return [
        checkpoint_case("unseen: an MLP", "values", seed, **sizes),
        checkpoint_case("unseen: measured", "measured", seed, **large),
        checkpoint_case("unseen: few rows, measured", "measured", seed, **narrow),
        checkpoint_case("unseen: few rows as data, measured", "measured-data", seed, **narrow),
        checkpoint_case("unseen: a large buffer, measured", "measured-buffer", seed, **large),
        checkpoint_case("unseen: another order, measured", "measured-view", seed, **large),
        checkpoint_case("unseen: autocast, measured", "measured-autocast", seed, **autocast),
        checkpoint_case("unseen: dropout in evaluation, measured", "measured-dropout", seed, **quiet),
        checkpoint_case("unseen: several, measured", "measured-several", seed, **narrow, result=BOTH),
        checkpoint_case("unseen: averages, measured", "measured-averages", seed, **narrow),
        checkpoint_case("unseen: a bound method, measured", "measured", seed, **large, called="method"),
        checkpoint_case("unseen: one layer frozen, measured", "measured", seed, **large, frozen=["0.weight"]),
        checkpoint_case("unseen: another large MLP", "values", seed, **large),
        checkpoint_case("unseen: dropout", "dropout", seed, **sizes),
        checkpoint_case("unseen: dropout by a function", "own-dropout", seed, **large),
        checkpoint_case("unseen: a gradient of zeros", "values", seed, zeros=True, **sizes),
        checkpoint_case("unseen: autocast", "autocast", seed, rows=12, width=16, inner=20),
        checkpoint_case("unseen: data", "data", seed, **large),
        checkpoint_case("unseen: the other result", "several", seed, result=1, **sizes),
        checkpoint_case(
            "unseen: x among the results",
            "handed-back",
            seed,
            result=draw.choice([1, BOTH]),
            made=draw.random() < 0.5,
            **sizes,
        ),
        checkpoint_case("unseen: nested", "nested", seed, **sizes),
        checkpoint_case("unseen: nested, two results", "nested-both", seed, result=BOTH, **sizes),
        *_calls_in_any_order(draw, seed, sizes),
        checkpoint_case("unseen: averages", "buffers", seed, **sizes),
        checkpoint_case("unseen: averages, three modules deep", "deep-buffers", seed, **large),
        checkpoint_case("unseen: an error", "raises", seed, **sizes),
        checkpoint_case("unseen: four ranks", "ranks", seed, ranks=4, **sizes),
        *_drawn_measurements(draw, seed, large),
    ]


def _calls_in_any_order(draw: Random, seed: int, sizes: Mapping[str, Any]) -> list[Case]:
    """Calls whose backwards come neither first in, first out, nor last in, first out."""
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("dropout", "dropout", {"called": draw.choice(list(CALLED))}),
        ("dropout by a function", "own-dropout", {"called": draw.choice(list(CALLED))}),
        ("dropout, nested", "nested-dropout", {}),
        ("averages", "buffers", {}),
    ]
    return [
        checkpoint_case(
            f"unseen: {name}, calls in any order",
            kind,
            seed,
            backwards=draw.choice([[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1]]),
            **sizes,
            **more,
        )
        for name, kind, more in ways
    ]


def _drawn_measurements(draw: Random, seed: int, sizes: Mapping[str, Any]) -> list[Case]:
    """Memory and runs once for each form of a function, with what else could make a difference drawn: the
    dtype, and whether x is a leaf. Each of these is there.
    """
    dtypes = ["float32", "float32", "float64", "bfloat16"]
    made = [True, True, False, True]
    draw.shuffle(dtypes)
    draw.shuffle(made)
    ways: list[dict[str, Any]] = [
        {"called": called, "dtype": dtype, "made": is_made}
        for called, dtype, is_made in zip(CALLED, dtypes, made, strict=True)
    ]
    kinds = ["measured", draw.choice(["measured-data", "measured-view", "measured-dropout"])]
    inside: dict[str, Any] = {"dtype": draw.choice(["float32", "float64"]), "made": draw.random() < 0.5}
    return [
        *(
            checkpoint_case(f"unseen: measured, drawn {number}", "measured", seed, **sizes, **way)
            for number, way in enumerate(ways, 1)
        ),
        checkpoint_case("unseen: nested, measured", "measured-nested", seed, **sizes, **inside),
        checkpoint_case(
            "unseen: ranks, measured",
            draw.choice(kinds),
            seed,
            ranks=draw.randint(2, 3),
            **sizes,
            **draw.choice(ways),
        ),
    ]


def _chain_cases(seed: int) -> list[Case]:
    draw = Random(f"05/chain/{seed}")
    # Where all but the last have the length's floor or ceiling, the last has two layers more or fewer.
    layers, segments = draw.choice([(n, k) for k in (4, 5, 7) for n in range(9, 18) if 2 <= n % k <= k - 2])
    twice = {"handed": "tuple", "pairs": [0, 1, 2, 3], "again_at_the_end": [3, 0]}
    return [
        chain_case("unseen: uneven", "values", layers, segments, seed, rows=4, width=3, inner=8),
        chain_case("unseen: two", "values", 3, 2, seed, rows=2, width=6, inner=3),
        chain_case("unseen: one layer", "values", 1, 1, seed),
        chain_case("unseen: a segment without parameters", "values", 6, 3, seed, bare=[2, 3]),
        chain_case("unseen: a tuple of nn.Sequentials", "any-sequence", 4, 3, seed, **twice),
        *_measured_chains(seed, draw.randint(6, 9)),
        chain_case("unseen: many rows", "values", 5, 3, seed, **WIDE),
        chain_case("unseen: refused", "refused", 6, 0, seed),
        chain_case("unseen: own", "own-parts", 5, 2, seed),
        *_deep_chains(draw, seed),
    ]


def _measured_chains(seed: int, rows: int) -> list[Case]:
    few = {"rows": rows, "width": 4, "inner": 256}
    mixed = {**WIDE, "mixed": True}
    return [
        chain_case("unseen: measured", "bytes", 12, 4, seed, **WIDE),
        chain_case("unseen: few rows, measured", "bytes", 12, 3, seed, **few),
        chain_case("unseen: 5 mixed, measured", "bytes", 5, 2, seed, **mixed, pairs=[3]),
        chain_case("unseen: frozen, measured", "bytes", 7, 3, seed, **mixed, frozen=[2]),
    ]


def _deep_chains(draw: Random, seed: int) -> list[Case]:
    """Enough segments for what backward holds to be seen; x is a leaf in one of them."""
    dtypes, made = ["float32", "float64"], [True, False]
    draw.shuffle(dtypes)
    draw.shuffle(made)
    return [
        chain_case(
            f"unseen: deep, measured, drawn {number}",
            "bytes",
            draw.randint(15, 18),
            draw.randint(4, 5),
            seed,
            **DEEP_CHAIN,
            dtype=dtype,
            made=is_made,
        )
        for number, (dtype, is_made) in enumerate(zip(dtypes, made, strict=True), 1)
    ]


def even_lengths(layers: int, segments: int) -> list[int]:
    """Lengths of nearly even segments, longer ones first."""
    return [layers // segments + (i < layers % segments) for i in range(segments)]


def peak_bytes(lengths: Sequence[int], boundary: int, layer: int) -> int:
    """The most a chain holds in backward: the boundaries before a segment, and the segment."""
    return max(before * boundary + length * layer for before, length in enumerate(lengths))


def _memory_cases(seed: int) -> list[Case]:
    draw = Random(f"05/memory/{seed}")
    rows = []
    for _ in range(8):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 7))]
        boundary = draw.randint(1, 5000)
        rows.append((lengths, boundary, boundary * draw.randint(1, 40)))
    rows += [_long_chain(draw, draw.randint(*sizes), 5000) for sizes in ((10, 29), (30, 90), (91, 400))]
    rows.append(_long_chain(draw, draw.randint(1200, 2000), 10**9))
    draw.shuffle(rows)
    return [values_case("peak", [memory_row(*row, peak_bytes(*row)) for row in rows], seed, ", unseen")]


def _long_chain(draw: Random, segments: int, most: int) -> tuple[list[int], int, int]:
    """Lengths, and bytes of a boundary (up to `most`) and of a layer; the peak may be at any segment."""
    boundary = draw.randint(1, most)
    times = draw.randint(1, 40)
    lengths = [draw.randint(1, 9) for _ in range(segments)]
    lengths[draw.randrange(segments)] += 9 + segments // times
    return lengths, boundary, boundary * times


def _best_cases(seed: int) -> list[Case]:
    draw = Random(f"05/best/{seed}")
    chains = [(draw.randint(1, 96), draw.randint(1, 300), draw.randint(1, 3000)) for _ in range(10)]
    chains += [(draw.randint(97, 300), draw.randint(1, 300), draw.randint(1, 3000)) for _ in range(5)]
    far = [_far_from_the_root(draw) for _ in range(3)]
    rows = [best_row(*chain, best_of(even_peaks(*chain))) for chain in chains + far]
    return [values_case("least-peak", rows, seed, ", unseen")]


def even_peaks(layers: int, boundary: int, layer: int) -> list[int]:
    """The peak with 1 segment, with 2, ..., with one a layer."""
    return [peak_bytes(even_lengths(layers, k), boundary, layer) for k in range(1, layers + 1)]


def best_of(peaks: Sequence[int]) -> int:
    """The smallest number of segments that has the lowest peak."""
    return 1 + peaks.index(min(peaks))


def _far_from_the_root(draw: Random) -> tuple[int, int, int]:
    """Layers, and bytes of a boundary and of a layer: the best number of segments is more than 20 away from
    where the smooth curve is lowest, and more than 20 before it in a row are no better than an earlier one.
    A layer of a fifth as many boundaries as there are layers often is like that.
    """
    while True:
        layers, boundary = draw.randint(120, 300), draw.randint(1, 60)
        layer = round(boundary * layers / draw.uniform(4.7, 5.3))
        peaks = even_peaks(layers, boundary, layer)
        best = best_of(peaks)
        away, waits = abs(best - (layers * layer / boundary) ** 0.5), best - 1 - best_of(peaks[: best - 1])
        if away > 20 and waits > 20:
            return layers, boundary, layer


CASES: dict[str, Callable[[int], list[Case]]] = {
    "05.checkpoint": _checkpoint_cases,
    "05.checkpoint-sequential": _chain_cases,
    "05.saved-activation-bytes": _memory_cases,
    "05.best-segment-count": _best_cases,
}
