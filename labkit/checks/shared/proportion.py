"""Where memory or calls are counted, the numbers of that very run count too: otherwise something else could
be done with large tensors, which are measured, than with small ones, which are compared.

They count up to one factor, and roughly. A mean that is a sum is another property's affair, and one mistake
should not cost everything; numbers that were never computed, or are another rank's own, are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.checks.compare import MISSING
from labkit.checks.exercise import Finding

ROOM = 0.05  # of the largest number


def in_proportion(
    told: str, expected: Sequence[Tensor], seen: Sequence[Tensor | None], rank: int, room: float = ROOM
) -> Finding:
    """Whether what a rank reported is `expected`, all of it times one number; where that is all zeros, as the
    gradient of a first token's query is, whether no number is larger than `room`.
    """
    told = f"{told} as in one process, in this run whose memory or calls are counted"
    for wanted, tensor in zip(expected, seen, strict=True):
        if tensor is None or tensor.numel() != wanted.numel():
            was = MISSING if tensor is None else f"shape {tuple(tensor.shape)}"
            return Finding(False, told, was, rank)
    right = torch.cat([tensor.double().flatten() for tensor in expected])
    found = torch.cat([tensor.double().flatten() for tensor in seen if tensor is not None])
    if not right.any():
        return Finding(bool((found.abs() <= room).all()), told, _seen(found), rank)
    times = float(right @ found) / float(right @ right)
    off = float((found - times * right).abs().max() / right.abs().max())
    passed = math.isfinite(off) and times != 0 and off <= room * abs(times)
    return Finding(passed, told, _seen(found), rank)


def change_since(start: Tensor, seen: Tensor) -> Tensor:
    """How far `seen` is from where it started. One of another shape is as it is, to be told: spread over the
    shape of `start` it could be larger than the memory of who grades.
    """
    return seen - start if seen.shape == start.shape else seen


def _seen(found: Tensor) -> str:
    if not torch.isfinite(found).all():
        return "numbers that are not finite"
    return "other numbers" if found.any() else "zeros"
