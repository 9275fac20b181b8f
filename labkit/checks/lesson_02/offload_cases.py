"""The layers that a check has wait on the host, and in what circumstances."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_02.small_layers import (
    IDS,
    NARROW,
    SMALL,
    Specs,
)

FROZEN_WIDE = [f"{layer}.{kind}" for layer in (2, 3, 4, 5) for kind in ("weight", "bias")]
FROZEN_RESIDENT = ["0.weight", "0.bias", "1.weight", "1.bias"]
SHIFTED: Specs = [["dense", 5, 4], ["shifted", 4], ["dense", 4, 3]]
FROZEN = ["0.bias", "2.weight", "3.weight", "3.bias"]


def offload_case(
    name: str, kind: str, layers: Specs, resident: int, lead: list[int], seed: int, **params: Any
) -> Case:
    """`layers` on one device, of which the first `resident` stay there. in_tuple: they are handed over in a
    tuple. fails, in_backward: the layer at which a pass ends in an error, and whether in its backward.
    """
    return Case(name, 1, {"layers": layers, "resident": resident, "lead": lead, **params}, seed, kind=kind)


def wide_layers(width: int, num_layers: int) -> Specs:
    """Layers whose weights are much larger than what flows through them."""
    return [["dense", width, width] for _ in range(num_layers)]


def with_buffers(layers: Specs) -> Specs:
    """The same layers, with a constant buffer in each that is dense."""
    return [["scaled", *sizes] if kind == "dense" else [kind, *sizes] for kind, *sizes in layers]


def with_dropout(layers: Specs) -> Specs:
    """The same layers with dropout: behind each as a layer of its own, or, in every other one that is dense,
    inside, as a function.
    """
    mixed: Specs = []
    for number, (kind, *sizes) in enumerate(layers):
        inside = kind == "dense" and number % 2 == 1
        mixed += [["dropping", *sizes]] if inside else [[kind, *sizes], ["dropout", 0.4]]
    return mixed


def language(width: int, num_layers: int) -> Specs:
    """A lookup of token ids, and wide layers with dropout; behind the last one is none."""
    *first, last = wide_layers(width, num_layers)
    return [["lookup", width, width], *with_dropout(first), last]


def offload_cases(seed: int) -> list[Case]:
    wide = wide_layers(64, 6)
    return [
        offload_case("2 of 5 resident", "values", SMALL, 2, [3], seed),
        offload_case(
            "1 of 5 resident", "values", SMALL, 1, [2, 3], seed, frozen=FROZEN, thawed=[6], resting=[0, 3]
        ),
        offload_case(
            "the first frozen, then changed",
            "values",
            SMALL,
            0,
            [3],
            seed,
            frozen=["0.weight", "0.bias", "3.bias"],
            thawed=[7],
            x_asks=False,
        ),
        offload_case(
            "the resident frozen", "values", SMALL, 2, [3], seed, frozen=FROZEN_RESIDENT, x_asks=False
        ),
        offload_case("x on the device", "values", SMALL, 1, [3], seed, x_on="cuda:0", dtype="bfloat16"),
        offload_case("x on another device", "values", SMALL, 2, [3], seed, x_on="cuda:0", gpu=1),
        offload_case("2 of 6 wide ones resident", "values", wide, 2, [1], seed),
        offload_case("weights of two types", "types", NARROW, 1, [3], seed),
        offload_case("after a pass that failed", "failed", SMALL, 1, [3], seed, fails=2),
        offload_case("whole numbers", "ids", IDS, 0, [2, 3], seed),
        offload_case("memory, 2 of 6 resident", "watched", wide, 2, [1], seed),
        offload_case("memory, none of 6 resident", "watched", wide, 0, [1], seed),
        offload_case("memory, 5 of 6 resident, the second GPU", "watched", wide, 5, [1], seed, gpu=1),
        offload_case("memory, frozen layers", "watched-frozen", wide, 1, [1], seed, frozen=FROZEN_WIDE),
        offload_case(
            "memory, in evaluation", "watched-frozen", wide, 1, [1], seed, evaluating=True, between=True
        ),
        offload_case("memory, token ids and dropout", "watched-language", language(64, 6), 2, [1], seed),
        offload_case("memory, constant buffers", "watched-buffers", with_buffers(wide), 0, [2], seed),
        offload_case("copies that take their time", "late", SMALL, 1, [3], seed),
        offload_case("buffers that take their time", "late-buffers", with_buffers(SMALL), 1, [3], seed),
        offload_case("wide layers that take their time", "late", wide, 2, [1], seed),
        offload_case("on the second GPU", "late", SMALL, 2, [3], seed, gpu=1),
        offload_case("constant buffers, the second GPU", "buffers", with_buffers(SMALL), 2, [3], seed, gpu=1),
        offload_case("a layer of constants alone", "buffers", SHIFTED, 0, [3], seed),
        offload_case("dropout", "dropout", with_dropout(SMALL), 2, [3], seed),
        offload_case("two batches, one backward", "two-batches", with_dropout(SMALL), 2, [3], seed),
        offload_case("two models, one backward", "two-models", SMALL, 1, [3], seed),
        offload_case("none resident", "extreme", SMALL, 0, [3], seed),
        offload_case("all resident", "extreme", SMALL, 5, [3], seed),
        offload_case("9 of 5 resident", "refusal", SMALL, 9, [3], seed, names=["9"]),
        offload_case("-1 of 5 resident", "refusal", SMALL, -1, [3], seed, names=["-1"]),
    ]
