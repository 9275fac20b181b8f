"""Numbers that a student's function returned: as data, held against the expected ones, and in words."""

from __future__ import annotations

import contextlib
import math

from labkit.checks.case import JSON

EXACT = 1e-9  # relative: room for the order of floating-point products, for nothing else
MOST_BITS = 512


def as_data(value: object) -> JSON:
    """A number, or a dict of numbers, as plain Python; TypeError says what was found instead."""
    if isinstance(value, dict):
        return {str(key): as_data(item) for key, item in value.items()}
    if hasattr(value, "item") and not isinstance(value, int | float):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {shown(value)}")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"expected a number of bytes or operations, found one of {value.bit_length()} bits")
    return value


def number_or_words(value: object) -> float | str:
    """A number as plain Python, or what came instead of one."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # the last: a tensor of several numbers
        number = as_data(value)
        if not isinstance(number, dict):
            return number
    return f"{type(value).__name__} {value!r}"[:200]


def wrong_number(expected: float, seen: JSON, tolerance: float = EXACT) -> str | None:
    """None when `seen` is `expected` up to a relative tolerance; otherwise what it is, in words.

    seen: whatever a rank sent, which student code may have written.
    """
    if isinstance(seen, bool) or not isinstance(seen, int | float):
        return f"{'a dict' if isinstance(seen, dict) else seen} instead of a number"
    if isinstance(seen, int) and seen.bit_length() > MOST_BITS:
        return f"a number of {seen.bit_length()} bits"
    if not math.isfinite(seen):
        return f"{seen}"
    if math.isclose(expected, seen, rel_tol=tolerance, abs_tol=0.0):
        return None
    if shown(seen) == shown(expected):
        return f"{seen!r} instead of {expected!r}"
    times = f", {seen / expected:.4g} times as much" if expected else ""
    return f"{shown(seen)} instead of {shown(expected)}{times}"


def shown(value: object) -> str:
    """A number as a sentence has it: 1,024 or 0.333333; the repr of everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return repr(value)
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:.6g}"
