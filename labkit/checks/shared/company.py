"""Ranks with others in their group. One that is alone has nobody to send to: it may communicate or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.shared.places import place_of


def in_company(evidence: Evidence) -> Iterator[RankAnswer]:
    """What the ranks that have others in their group answered."""
    return (answer for answer in evidence.answers if place_of(evidence.case, answer.rank).size > 1)


def on_each_in_company(find: Callable[[Any, RankAnswer], Finding]) -> Judge:
    """A judge that has one finding about each of these ranks."""
    return lambda evidence: (find(evidence, answer) for answer in in_company(evidence))
