"""What the bytes of ring attention and of Ulysses must come to. The values of visible cases were recorded."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Property
from labkit.checks.shared.formula import Row, formula_exercise, refusal_case, values_case

HIDES = ("theory/context.py",)
LLAMA_8B = (131_072, 32, 8, 128)  # tokens, heads, key-value heads, numbers in a head


def asked(way: str, shape: tuple[int, int, int, int], ranks: int, **more: Any) -> dict[str, JSON]:
    """Arguments of one call."""
    names = ("sequence", "heads", "kv_heads", "head_size")
    return {"way": way, **dict(zip(names, shape, strict=True)), "ranks": ranks, **more}


def in_both_directions(rows: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """What is asked of the forward, asked of the backward too."""
    return [row | {"backward": backward} for row in rows for backward in (False, True)]


def _cases(seed: int) -> list[Case]:
    odd = (45, 9, 3, 5)  # 9 or 15 tokens a rank
    ring: list[Row] = [
        (asked("ring", LLAMA_8B, 8), 469_762_048),
        (asked("ring", LLAMA_8B, 2), 268_435_456),
        (asked("ring", odd, 5, element=4), 4_320),
    ]
    back: list[Row] = [
        (asked("ring", LLAMA_8B, 8, backward=True), 1_006_632_960),
        (asked("ring", LLAMA_8B, 2, backward=True), 805_306_368),
        (asked("ring", odd, 3, backward=True, element=8), 18_000),
    ]
    ulysses: list[Row] = [
        (asked("ulysses", LLAMA_8B, 8), 293_601_280),
        (asked("ulysses", LLAMA_8B, 4, backward=True), 503_316_480),
        (asked("ulysses", odd, 3, element=4), 4_800),
    ]
    alone = [asked(way, LLAMA_8B, 1, backward=b) for way in ("ring", "ulysses") for b in (False, True)]
    refused = [
        asked("ulysses", LLAMA_8B, 16),
        asked("ulysses", (120, 8, 6, 4), 3),
        asked("ulysses", (132, 8, 8, 4), 8),
        asked("ring", LLAMA_8B, 3),
        asked("star", LLAMA_8B, 4),
        asked("Ring", LLAMA_8B, 4),
    ]
    return [
        values_case("ring", ring, seed),
        values_case("ring-backward", back, seed),
        values_case("ulysses", ulysses, seed),
        values_case("alone", [(row, 0) for row in alone], seed),
        refusal_case("refused", in_both_directions(refused), seed),
    ]


EXERCISE = formula_exercise(
    "11.context-bytes",
    "What a ring sends, and what Ulysses sends",
    "context_bytes",
    [
        Property(
            "ring",
            "numbers",
            2,
            "Forward of a ring: keys and values of s/n tokens, n - 1 times.",
            "n times, or all heads instead of the key-value heads",
        ),
        Property(
            "ring-backward",
            "numbers",
            2,
            "Its backward: 4n - 2 tensors, as the sums come home.",
            "the gradients were given n - 1 steps, as the keys",
        ),
        Property(
            "ulysses",
            "numbers",
            2,
            "Ulysses: (n-1)/n of queries, keys, values and output of s/n tokens, in backward as much.",
            "what a rank keeps was counted too, or queries and output alone",
        ),
        Property("alone", "robustness", 1, "One rank sends nothing.", "4n - 2 is 2 for n = 1"),
        Property(
            "refused",
            "robustness",
            2,
            "What cannot be divided, and a way that is not known, is a ValueError.",
            "Ulysses on more ranks than there are key-value heads",
        ),
    ],
    _cases,
    forbids=("labkit.theory.context.ring_sent", "labkit.theory.context.ulysses_sent"),
    hides=HIDES,
)
