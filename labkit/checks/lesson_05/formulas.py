"""What a checkpointed chain holds in backward, and in how many segments that is least."""

from __future__ import annotations

from labkit.checks.case import Case
from labkit.checks.exercise import Property
from labkit.checks.shared.formula import Row, formula_exercise, refusal_case, values_case


def memory_row(lengths: list[int], boundary_bytes: int, layer_bytes: int, value: int) -> Row:
    """Arguments of saved_activation_bytes, and its value."""
    return {"lengths": lengths, "boundary_bytes": boundary_bytes, "layer_bytes": layer_bytes}, value


def best_row(num_layers: int, boundary_bytes: int, layer_bytes: int, value: int) -> Row:
    """Arguments of best_segment_count, and its value."""
    return {"num_layers": num_layers, "boundary_bytes": boundary_bytes, "layer_bytes": layer_bytes}, value


def _memory_cases(seed: int) -> list[Case]:
    rows = [
        memory_row([3, 2, 2], 10, 70, 210),
        memory_row([5], 8, 100, 500),
        memory_row([1, 1, 1, 1], 4096, 36864, 49152),
        memory_row([2, 3], 6, 11, 39),
        memory_row([1, 4, 1], 5, 7, 33),
        memory_row([2, 1, 1], 10, 12, 32),
        memory_row([3, 2, 2, 1], 10, 12, 44),
        memory_row([3, 2, 2], 2_345_678_901, 12_345_678_907, 37_037_036_721),
        memory_row([2] * 20 + [5] + [2] * 19, 3, 50, 310),
        memory_row([1] * 1_499 + [2], 10, 70, 15_130),
    ]
    empty = [memory_row([], *sizes, 0)[0] for sizes in ((1, 1), (0, 0), (4096, 36864))]
    return [values_case("peak", rows, seed), refusal_case("no-segments", empty, seed)]


def _best_cases(seed: int) -> list[Case]:
    rows = [
        best_row(16, 10, 10, 3),
        best_row(64, 1, 17, 40),
        best_row(64, 1000, 17, 1),
        best_row(1, 8, 8, 1),
        best_row(12, 2, 34, 12),
        best_row(7, 100, 101, 3),
        best_row(30, 5, 60, 21),
        best_row(7, 2**31 + 1, 2**31 + 3, 3),
        best_row(500, 3, 1000, 417),
        best_row(31, 13, 78, 12),
        best_row(86, 1, 8, 24),
        best_row(245, 14, 116, 51),
        best_row(172, 36, 1440, 106),
        best_row(296, 57, 3412, 178),
        best_row(1087, 6, 1314, 653),
    ]
    return [values_case("least-peak", rows, seed)]


SAVED_ACTIVATION_BYTES = formula_exercise(
    "05.saved-activation-bytes",
    "What a checkpointed chain holds",
    "saved_activation_bytes",
    [
        Property(
            "peak",
            "numbers",
            3,
            "The most that a chain holds during backward, in bytes, whatever sequence its lengths come in",
            "while a segment is run again, only the boundaries before it still wait; try each segment",
        ),
        Property(
            "no-segments",
            "robustness",
            1,
            "A chain without segments is refused with a ValueError",
            "max() of nothing raises a ValueError of its own, but a sum gives 0: look first",
        ),
    ],
    _memory_cases,
)

BEST_SEGMENT_COUNT = formula_exercise(
    "05.best-segment-count",
    "How many segments",
    "best_segment_count",
    [
        Property(
            "least-peak",
            "numbers",
            3,
            "The number of segments with the lowest peak, the smallest if several have it",
            "the square root is where a smooth curve is lowest; segments are whole: compare them all",
        ),
    ],
    _best_cases,
)
