"""Calls that come a second time with the same tensor, as in every step of a training run."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from labkit.checks.rank import Rank


def called_before(rank: Rank, x: Tensor, call: Callable[[], object]) -> None:
    """Where the case says `again`: make the call with zeros in x first, then put x's numbers back.

    Who keeps what a tensor gave, rather than its numbers, is then wrong in the call that counts.
    """
    if rank.params.get("again"):
        numbers = x.clone()
        x.zero_()
        call()
        x.copy_(numbers)
