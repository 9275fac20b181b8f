"""Compares what a rank sent with what was expected, and says the difference in one line."""

from __future__ import annotations

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

    The tolerance follows the coarser of the two dtypes and scales with the largest expected magnitude.
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
    if not torch.isfinite(seen).all():
        return f"{int((~torch.isfinite(seen)).sum())} of {seen.numel()} elements are not finite"
    tolerance = RELATIVE_TOLERANCE[seen.dtype] * max(1.0, float(expected.abs().max()))
    return _worst(expected, seen, (expected.double() - seen.double()).abs(), tolerance)


def _worst(expected: torch.Tensor, seen: torch.Tensor, error: torch.Tensor, tolerance: float) -> str | None:
    if float(error.max()) <= tolerance:
        return None
    index = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    wrong = int((error > tolerance).sum())
    return (
        f"{wrong} of {error.numel()} elements differ; worst at {list(index)}: "
        f"{seen[index].item():.6g} instead of {expected[index].item():.6g}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
