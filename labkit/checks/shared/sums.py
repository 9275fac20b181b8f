"""What ranks have moved to add something up, however they did it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.checks.shared.twins import each_once

# An all_reduce is a reduce_scatter and an all_gather, or a reduce and a broadcast.
SHARES = {"all_reduce": 1.0, "reduce_scatter": 0.5, "reduce": 0.5, "broadcast": 0.5}


def summed_bytes(calls: Iterable[Mapping[str, Any]]) -> float:
    """Bytes of the sums over ranks that a rank's calls come to: a half of an all_reduce counts half, and
    whatever else was sent counts whole. Of a reduce_scatter that C++ made gloo tells that it was an
    all_reduce, which it was.
    """
    return sum(_share(c) * c["num_bytes"] for c in each_once(calls))


def _share(call: Mapping[str, Any]) -> float:
    # the bytes of an all_gather are those that one rank puts in
    return len(call["group"]) / 2 if call["op"] == "all_gather" else SHARES.get(call["op"], 1.0)
