"""Compares what a rank sent with what was expected, and says the difference in one line."""

from __future__ import annotations

import math

import torch

# A few hundred roundings of the dtype's unit: sums are taken in another order on n ranks than on one.
RELATIVE_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
}


MISSING = "nothing (None)"


def difference(expected: torch.Tensor, seen: torch.Tensor | None) -> str | None:
    """None when `seen` equals `expected` up to rounding; otherwise what is wrong, with the worst element.

    The tolerance is that of their dtype, times the largest expected magnitude where that is above 1.
    Infinities are equal where both have them.
    """
    if seen is None:
        return MISSING
    if seen.shape != expected.shape:
        return f"shape {tuple(seen.shape)} instead of {tuple(expected.shape)}"
    if seen.dtype != expected.dtype:
        return f"dtype {_name(seen.dtype)} instead of {_name(expected.dtype)}"
    if expected.numel() == 0:
        return None
    if not seen.dtype.is_floating_point:
        return _worst(expected, seen, torch.ne(expected, seen).double(), 0.0)
    equal = expected == seen
    unexpected = int((~torch.isfinite(seen) & ~equal).sum())
    if unexpected:
        return f"{unexpected} of {seen.numel()} elements are not finite"
    magnitudes = expected.abs().masked_fill(~torch.isfinite(expected), 0.0)
    tolerance = RELATIVE_TOLERANCE[seen.dtype] * max(1.0, float(magnitudes.max()))
    error = (expected.double() - seen.double()).abs().masked_fill(equal, 0.0)
    return _worst(expected, seen, error, tolerance)


def _worst(expected: torch.Tensor, seen: torch.Tensor, error: torch.Tensor, tolerance: float) -> str | None:
    if float(error.max()) <= tolerance:
        return None
    index = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    wrong = int((error > tolerance).sum())
    was, wanted = _told_apart(seen[index].item(), expected[index].item())
    times = _in_proportion(expected.double(), seen.double(), tolerance)
    if error.dim() == 0:
        return f"{was} ({_name(seen.dtype)}) instead of {wanted}" + (f"; {times}" if times else "")
    return (
        f"{wrong} of {error.numel()} elements ({_name(seen.dtype)}) differ; worst at {list(index)}: "
        f"{was} instead of {wanted}" + (f"; all are {times}" if times else "")
    )


def _told_apart(seen: float, expected: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see that they differ, six at least."""
    for digits in range(6, 18):
        texts = f"{seen:.{digits}g}", f"{expected:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return str(seen), str(expected)


def _in_proportion(expected: torch.Tensor, seen: torch.Tensor, tolerance: float) -> str:
    """What all elements were multiplied by, where it is one number: a division or a sum that is missing."""
    whole = float((expected * expected).sum())
    if not whole or not math.isfinite(whole):
        return ""
    times = float((expected * seen).sum()) / whole
    off = float((seen - times * expected).abs().max())
    if off > tolerance * max(1.0, abs(times)):
        return ""
    return "zero" if abs(times) < 1e-12 else f"{times:.4g} times what was expected"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
