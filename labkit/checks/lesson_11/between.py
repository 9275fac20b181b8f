"""What ranks send while none of a case's recordings is under way: who moves numbers where nobody looks moves
them all the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, calls_of, calls_text, on_each

THROUGHOUT = "throughout"


def recorded_throughout(rank: Rank) -> contextlib.AbstractContextManager[object]:
    """Record all that is sent inside, beside the recordings in it: groups are made before."""
    return rank.recording(THROUGHOUT)


def as_named(answer: RankAnswer) -> RankAnswer:
    """A rank's answer without that recording, in which all calls are a second time."""
    return replace(answer, collectives={n: c for n, c in answer.collectives.items() if n != THROUGHOUT})


def single_numbers_between(most: int) -> Judge:
    """A judge of what is sent in a case that is `recorded_throughout`, and in none of its other recordings:
    `most` bytes.
    """

    def find(_: object, answer: RankAnswer) -> Finding:
        calls = list(_between(answer))
        told = f"before, between and after what is asked for: at most {most} bytes of single numbers"
        return Finding(sum(sent for _, sent in calls) <= most, told, calls_text(calls), answer.rank)

    return on_each(find)


def _between(answer: RankAnswer) -> Iterator[Call]:
    everything = Counter(calls_of(answer, THROUGHOUT))
    for name in as_named(answer).collectives:
        everything.subtract(calls_of(answer, name))
    return everything.elements()
