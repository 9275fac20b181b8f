"""What a rank holds once its backend has let go of what it sent."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.held import SETTLES, weighed
from labkit.checks.shared.holding import bytes_of_names
from labkit.record.live import bytes_of_process, settled_bytes_of_process

PATIENCE = 3.0  # seconds that a backend's own thread may take, on a busy machine, to let go of a tensor
PATIENCE_OF_A_LIFE = 5.0  # the same for all moments of a life together
LIVES = 3  # the first is not counted: what runs for the first time imports and caches
OBJECT_BYTES = 96 * 1024  # for what is no tensor, where all of a process counts
CALL_BYTES = 3 * 1024  # of what this course and torch record of a collective
PROCESS = "process_bytes"
Made = TypeVar("Made")
Look = Callable[[str], None]  # at the process, at a moment of that name
Life = Callable[[Look], Made]


def bytes_beforehand() -> int:
    """Bytes of all tensors of this process, but for those that a notebook's names lead to: what was set aside
    there is held, once it is filled.
    """
    return bytes_of_process() - bytes_of_names()


def bytes_held(enough: int, patience: float = PATIENCE) -> int:
    """Bytes of all tensors of this process: as they are if at most `enough`, else the least in so many
    seconds.
    """
    over, held = time.monotonic() + patience, bytes_of_process()
    while held > enough and time.monotonic() < over:
        held = min(held, settled_bytes_of_process())
    return held


def hold_in_process(
    rank: Rank, prepare: Callable[[], Life[Made]], most: Mapping[str, int], answer: Callable[[Made], None]
) -> None:
    """Fact PROCESS: bytes by moment that what lives keeps then, as an array, as text or in whatever it is
    hidden: the most where a moment comes several times. What lived last is then given to `answer`.

    prepare: makes what is no part of a student's, and returns the life. most: bytes by moment that are
    enough, and no longer looked at.
    """
    enough = {when: num_bytes + OBJECT_BYTES for when, num_bytes in most.items()}
    with _little_to_collect():
        lives = [_lived(prepare, enough, _ignore) for _ in range(LIVES - 1)]
        lives.append(_lived(prepare, enough, answer))
    rank.fact(PROCESS, {when: min(life[when] for life in lives[1:]) for when in most})


@contextlib.contextmanager
def _little_to_collect() -> Iterator[None]:
    """Looking for rubbish, at each moment, takes no time inside: what is there already is left out."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _ignore(made: object) -> None:
    pass


class _Scale:
    """Weighs a process at moments of a life. enough: of each, what is waited for.

    found: of each, the most beyond what there was before the life.
    """

    def __init__(self, enough: Mapping[str, int]):
        self.before, self.enough = _least(0, SETTLES) - bytes_of_names(), enough
        self.found = dict.fromkeys(enough, 0)
        self.patience = PATIENCE_OF_A_LIFE

    def look(self, when: str) -> None:
        most, held = self.before + max(self.enough[when], self.found[when]), weighed()
        if held > most:
            begun = time.monotonic()
            held = min(held, _least(most, self.patience))
            self.patience -= time.monotonic() - begun
        self.found[when] = max(self.found[when], held - self.before)


def _lived(
    prepare: Callable[[], Life[Made]], enough: Mapping[str, int], answer: Callable[[Made], None]
) -> dict[str, int]:
    scale = _Scale(enough)
    answer(prepare()(scale.look))
    return scale.found


def _least(enough: int, seconds: float) -> int:
    """The least that there is within so many seconds; looked at no longer once it is `enough`."""
    over, least = time.monotonic() + seconds, weighed()
    while least > enough and time.monotonic() < over:
        time.sleep(SETTLES / 10)
        least = min(least, weighed())
    return least


def holds_no_more(most: Callable[[Case], Mapping[str, int]]) -> Judge:
    """However it is kept, at none of these moments a rank holds more than these bytes, and what is no
    tensor.
    """

    def judge(evidence: Evidence) -> Iterator[Finding]:
        return (
            _no_more(when, num_bytes + OBJECT_BYTES, answer.facts[PROCESS][when], answer.rank)
            for answer in evidence.answers
            for when, num_bytes in most(evidence.case).items()
        )

    return judge


def _no_more(when: str, enough: int, held: int, rank: int) -> Finding:
    told = f"{when}: at most {enough:,} bytes in the process, as tensors or in any other form"
    return Finding(held <= enough, told, f"{held:,} bytes", rank)
