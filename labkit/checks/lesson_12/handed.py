"""Whether what a student's function was handed is as it was when the call is over."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank


def turned(tensor: Tensor) -> Tensor:
    """The same matrix, stored column after column: a view that cannot be viewed as one row."""
    return tensor.t().contiguous().t()


def tell_changed(rank: Rank, handed: Mapping[str, Tensor]) -> None:
    """Fact changed: the inputs, of those handed over by these names, that are no longer what they were."""
    rank.fact("changed", [name for name, t in handed.items() if not torch.equal(t, rank.inputs[name])])


def as_handed(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether all of them are what they were, by `tell_changed`."""
    changed = answer.facts["changed"]
    return Finding(not changed, "what was handed over, as it was", f"changed: {changed}", answer.rank)
