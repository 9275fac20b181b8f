"""What a short run takes of a long list: another part each day, so that every item has its turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

Item = TypeVar("Item")
EVERYTHING = "LABKIT_EVERYTHING"  # in the environment: no parts
SAMPLE = "LABKIT_SAMPLE"  # in the environment of `make test`: a number that draws what is drawn at random


def today() -> int:
    """A number that is one more each day."""
    return datetime.now(UTC).toordinal()


def part_of(items: Sequence[Item], parts: int, turn: int) -> list[Item]:
    """Every `parts`-th item, beginning with another one each turn; `parts` turns take all.

    All items where LABKIT_EVERYTHING is set.
    """
    if os.environ.get(EVERYTHING):
        return list(items)
    return list(items[turn % parts :: parts])
