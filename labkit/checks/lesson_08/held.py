"""What a rank holds once its backend has let go of what it sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.held import SETTLES, allocated
from labkit.record.live import bytes_of_process, settled_bytes_of_process

PATIENCE = 3.0  # seconds that a backend's own thread may take, on a busy machine, to let go of a tensor
TIMES = 3  # the first is not counted: what runs for the first time imports and caches
OBJECT_BYTES = 96 * 1024  # for what is no tensor, where all of a process counts
PROCESS = "process_bytes"
Made = TypeVar("Made")


def bytes_held(enough: int) -> int:
    """Bytes of all tensors of this process: as they are if at most `enough`, else the least in PATIENCE."""
    over, held = time.monotonic() + PATIENCE, bytes_of_process()
    while held > enough and time.monotonic() < over:
        held = min(held, settled_bytes_of_process())
    return held


def hold_in_process(rank: Rank, make: Callable[[], Made], most: int, answer: Callable[[Made], None]) -> None:
    """Fact PROCESS: bytes that what is made keeps, as an array, as text or in whatever it is hidden. What was
    made last is then given to `answer`.
    """
    found = [_kept(make, most + OBJECT_BYTES, _ignore) for _ in range(TIMES - 1)]
    found.append(_kept(make, most + OBJECT_BYTES, answer))
    rank.fact(PROCESS, min(found[1:]))


def _ignore(made: object) -> None:
    pass


def _kept(make: Callable[[], Made], enough: int, answer: Callable[[Made], None]) -> int:
    before = _least(0, SETTLES)
    made = make()
    after = _least(before + enough, PATIENCE)
    answer(made)
    return after - before


def _least(enough: int, seconds: float) -> int:
    """The least that is allocated within so many seconds; looked at no longer once it is `enough`."""
    over, least = time.monotonic() + seconds, allocated()
    while least > enough and time.monotonic() < over:
        time.sleep(SETTLES / 10)
        least = min(least, allocated())
    return least


def holds_no_more(most: Callable[[Case], int]) -> Judge:
    """However it is kept, a rank holds at most these bytes, and what is no tensor."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        enough = most(evidence.case) + OBJECT_BYTES
        for answer in evidence.answers:
            held = answer.facts[PROCESS]
            told = f"at most {enough:,} bytes in the process, as tensors or in any other form"
            yield Finding(held <= enough, told, f"{held:,} bytes", answer.rank)

    return judge
