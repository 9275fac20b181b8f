"""What `07.activation-bytes` must show: what a rank keeps of a block, by formula."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Property
from labkit.checks.shared.formula import formula_exercise, values_case


def _rows(arguments: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    from labkit.theory.activations import layer_activation_bytes
    from labkit.theory.models import gpt

    rows = []
    for row in arguments:
        config = gpt(1, row["h"], row["a"], max_sequence=row["s"])
        divided = row.get("sequence_parallel", False)
        value = layer_activation_bytes(
            config, row["s"], row["b"], tensor_parallel=row["t"], sequence_parallel=divided
        )
        rows.append((row, value))
    return rows


def bytes_cases(seed: int, shapes: list[dict[str, int]] | None = None, suffix: str = "") -> list[Case]:
    """One case a formula; shapes: s, b, h, a and t, those of the 22B model and odd ones when not given."""
    shapes = shapes or [
        {"s": 2048, "b": 4, "h": 6144, "a": 64, "t": 8},
        {"s": 96, "b": 3, "h": 40, "a": 5, "t": 1},
        {"s": 512, "b": 1, "h": 96, "a": 12, "t": 4},
        {"s": 64, "b": 2, "h": 80, "a": 10, "t": 5},
        {"s": 8192, "b": 1, "h": 4096, "a": 32, "t": 32},
        {"s": 131_072, "b": 16, "h": 16_384, "a": 128, "t": 64},
    ]
    divided = [{**shape, "sequence_parallel": True} for shape in shapes]
    return [
        values_case("tensor-parallel", _rows(shapes), seed, suffix),
        values_case("sequence-parallel", _rows(divided), seed, suffix),
    ]


EXERCISE = formula_exercise(
    "07.activation-bytes",
    "What a rank keeps",
    "block_activation_bytes",
    (
        Property(
            "tensor-parallel",
            "numbers",
            2,
            "Without sequence parallelism: what is whole on every rank, and a t-th of what is cut.",
            "norms, dropout and the inputs of both regions are whole on every rank",
        ),
        Property(
            "sequence-parallel",
            "numbers",
            2,
            "With it: a t-th of everything.",
            "the table is in bytes already",
        ),
    ),
    bytes_cases,
    hides=("theory/activations.py",),
)
