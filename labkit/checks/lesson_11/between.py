"""What ranks send while none of a case's recordings is under way: who moves numbers where nobody looks moves
them all the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from labkit.checks.case import JSON, RankAnswer
from labkit.checks.exercise import Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, on_each
from labkit.checks.shared.twins import each_once

BETWEEN = "between"


@contextlib.contextmanager
def recorded_throughout(rank: Rank) -> Iterator[None]:
    """Recording `BETWEEN`: all that is sent inside, and is in none of the recordings there. Groups are made
    before.
    """
    try:
        with rank.recording(BETWEEN):
            yield
    finally:
        _keep_what_is_between(rank)


def _keep_what_is_between(rank: Rank) -> None:
    """No call may be told twice: a job's records are held against what its network carried."""
    recorded = rank.result.collectives
    named = Counter(call for name in recorded if name != BETWEEN for call in calls_of(rank.result, name))
    left, found = Counter(calls_of(rank.result, BETWEEN)) - named, list[dict[str, JSON]]()
    for call in each_once(recorded[BETWEEN]):
        key = call["op"], call["num_bytes"]
        if left[key]:
            left[key] -= 1
            found.append(dict(call))
    recorded[BETWEEN] = found


def single_numbers_between(most: int) -> Judge:
    """A judge of what is sent in a case that is `recorded_throughout`, and in none of its other recordings:
    `most` bytes.
    """

    def find(_: object, answer: RankAnswer) -> Finding:
        calls = calls_of(answer, BETWEEN)
        told = f"before, between and after what is asked for: at most {most} bytes of single numbers"
        return Finding(sum(sent for _, sent in calls) <= most, told, calls_text(calls), answer.rank)

    return on_each(find)
