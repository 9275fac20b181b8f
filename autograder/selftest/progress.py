"""How far a long run is, in a line now and then: its output is often a file that somebody looks into."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

EVERY = 30.0  # seconds
Item = TypeVar("Item")


def told_now_and_then(
    items: Iterable[Item], total: int, doing: str, show: Callable[[str], None], every: float = EVERY
) -> Iterator[Item]:
    """The items, while `show` is told how many of `total` there were: at most each `every` seconds, and in
    the end.
    """
    begin = last = time.monotonic()
    number = 0
    for number, item in enumerate(items, 1):
        now = time.monotonic()
        if now - last >= every:
            show(f"{doing}: {number} of {total} in {(now - begin) / 60:.1f} min")
            last = now
        yield item
    show(f"{doing}: {number} of {total} done in {(time.monotonic() - begin) / 60:.1f} min")
