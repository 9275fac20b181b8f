"""Contenders that take turns in one job, so that whatever disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def take_turns(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int,
    now: Callable[[], float] = time.perf_counter,
    barrier: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of every step by contender, without those of the first `warm_up` rounds.

    Each contender is first in every second round. A step lasts from a barrier to a barrier: where ranks run,
    until all of them are done. now: seconds, when what was asked of the device is done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm_up + rounds):
        for name in list(steps)[:: 1 if number % 2 else -1]:
            barrier()
            start = now()
            steps[name]()
            barrier()
            if number >= warm_up:
                seconds[name].append(now() - start)
    return seconds
