"""What is looked at wherever gradients are clipped by one norm over ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.shared.beside import calls_of, calls_text


def clipped_difference(expected: Tensor, seen: Tensor | None) -> str | None:
    """At float32's tolerance: some divide by the norm plus 1e-6, as torch does."""
    if seen is None or seen.dtype != torch.float64:
        return difference(expected, seen)
    return difference(expected.float(), seen.float())


def sends_one_number(evidence: Evidence, answer: RankAnswer, phase: str = "all") -> Finding:
    """The rank's calls in what was recorded are one all-reduce of at most eight bytes."""
    calls = calls_of(answer, phase)
    one = len(calls) == 1 and calls[0][0] == "all_reduce" and calls[0][1] <= 8
    return Finding(one, "one all_reduce of one number", calls_text(calls), answer.rank)
