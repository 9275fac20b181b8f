"""The losses that a program returns: their numbers, and that they are plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.rank import Rank


def send_losses(rank: Rank, losses: Any, dtype: torch.dtype) -> None:
    """Answer: losses, in the dtype they were computed in. Fact: is_list, of floats."""
    rank.fact("is_list", isinstance(losses, list) and all(isinstance(value, float) for value in losses))
    rank.answer("losses", torch.tensor(losses, dtype=dtype))


def send_all_losses(rank: Rank, calls: Sequence[Any], dtype: torch.dtype) -> None:
    """The same of several calls: all losses, one call's behind the other's; whether each is a list."""
    each = [isinstance(losses, list) and all(isinstance(v, float) for v in losses) for losses in calls]
    rank.fact("is_list", all(each))
    rank.answer("losses", torch.cat([torch.tensor(losses, dtype=dtype) for losses in calls]))


def are_floats(answer: RankAnswer) -> Finding:
    """Whether a rank's losses came as what was asked for: a list of floats, not of tensors."""
    return Finding(answer.facts["is_list"] is True, "a list of floats", "something else", answer.rank)
