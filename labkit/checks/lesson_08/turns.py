"""When units of a small module are at work, beside what it has begun to gather and to scatter by then: where
a stack of equal layers fetches ahead and lets gradients go in turn, any other module does so too, in each
forward and each backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.net import STEPS, net_of
from labkit.checks.lesson_08.whole import Used, homes_of
from labkit.checks.rank import Rank
from labkit.checks.shared.places import place_of

FORWARD, BACKWARD = "forward", "backward"


class Turns:
    """Notes when a unit has done its forward, and when backward has a gradient of its weights: then it is at
    work. Made before the net is sharded, so that its hooks come before those of what shards it.
    """

    def __init__(self, units: Sequence[nn.Module]):
        self._passes: list[tuple[str, float, list[tuple[int, float]]]] = []
        for number, unit in enumerate(units):
            unit.register_forward_hook(lambda *_, number=number: self._note(number))
        for number, p in homes_of(units).values():
            if p.requires_grad:
                p.register_hook(lambda _, number=number: self._note(number))

    def watch(self, sharded: nn.Module) -> None:
        """What comes between a forward and the next is its backward, if any."""
        sharded.register_forward_pre_hook(lambda *_: self._turn(FORWARD))
        sharded.register_forward_hook(lambda *_: self._turn(BACKWARD))

    def tell(self, rank: Rank, step: int, begin: float) -> None:
        """Fact "turns STEP": passes since the last time, whose moments count from `begin` as those of a
        recording do: direction, when it began, units and when they were at work.
        """
        passes: list[JSON] = [
            [direction, when - begin, [[number, moment - begin] for number, moment in moments]]
            for direction, when, moments in self._passes
        ]
        rank.fact(f"turns {step}", passes)
        self._passes.clear()

    def _turn(self, direction: str) -> None:
        self._passes.append((direction, time.monotonic(), []))

    def _note(self, number: int) -> None:
        if self._passes:
            self._passes[-1][2].append((number, time.monotonic()))


@dataclass(frozen=True)
class _Pass:
    """A forward or a backward of a rank. moments: units and when they were at work. calls: what began in it.
    used: what the step uses, by rank of the group.
    """

    case: Case
    answer: RankAnswer
    told: str
    direction: str
    moments: Sequence[tuple[int, float]]
    calls: Sequence[dict[str, Any]]
    used: Sequence[Used]

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of a rank's shards, by unit."""
        return self.used[0].sizes

    def begun(self, op: str, moment: float) -> int:
        """Bytes of the calls that have begun by then."""
        return sum(c["num_bytes"] for c in self.calls if c["op"] == op and c["start"] < moment)

    def arrived(self, moment: float) -> int:
        """Bytes of the gathers that this rank has waited for by then."""
        gathers = [c for c in self.calls if c["op"] == "all_gather" and c["end"] is not None]
        return sum(c["num_bytes"] for c in gathers if c["end"] < moment)

    @cached_property
    def gathered(self) -> set[int]:
        """Units that are gathered in it: those that are called, or whose weights backward needs again, but
        for the last if it stayed.
        """
        if self.direction == FORWARD:
            return set[int]().union(*(one.called for one in self.used))
        again = set[int]().union(*(one.again for one in self.used))
        all_of_them = sum(self.sizes[number] for number in again)
        last = max(again, default=0)
        stayed = self.begun("all_gather", float("inf")) <= all_of_them - self.sizes[last]
        return again - {last} if stayed else again

    def wanted(self) -> Iterator[tuple[int, float, int]]:
        """A unit, a moment at which it is at work, and bytes that must have been asked for by then: for all
        units so far and those that came next in the list.
        """
        step, width = 1 if self.direction == FORWARD else -1, 1 + self.case.params["prefetch"]
        so_far = set[int]()
        for number, moment in self.moments:
            so_far |= set(range(number, number + step * width, step))
            yield number, moment, sum(self.sizes[n] for n in so_far & self.gathered)


def _passes(evidence: Evidence) -> Iterator[_Pass]:
    """Of each rank that is not alone. Where another module is in each backward too, forwards alone."""
    case = evidence.case
    used = [
        [Used(case, rank, step, frozen=case.kind == "frozen") for step in range(STEPS)]
        for rank in range(case.ranks)
    ]
    for answer in evidence.answers:
        members = place_of(case, answer.rank).members
        if len(members) == 1:
            continue
        for step in range(STEPS):
            calls = [c for c in answer.collectives[f"step {step}"] if c["source"] == "python"]
            found = answer.facts[f"turns {step}"]
            ends = [*(when for _, when, _ in found[1:]), float("inf")]
            for (direction, when, moments), end in zip(found, ends, strict=True):
                if direction == FORWARD or not case.params.get("another"):
                    inside = [c for c in calls if when <= c["start"] < end]
                    told = f"step {step + 1}, {direction}"
                    of_ranks = [used[rank][step] for rank in members]
                    yield _Pass(case, answer, told, direction, moments, inside, of_ranks)


def fetches_ahead_in_each_step(evidence: Evidence) -> Iterator[Finding]:
    """When a unit is at work, what comes next in the list has been asked for too, and nobody has waited for
    more than what was at work so far.
    """
    arrives = _bytes_of_units(evidence.case)
    for one in _passes(evidence):
        for number, moment, wanted in one.wanted():
            seen = one.begun("all_gather", moment)
            told = f"{one.told}: at least {wanted:,} bytes of all_gathers begun when unit {number} is at work"
            yield Finding(seen >= wanted, told, f"{seen:,}", one.answer.rank)
            if arrives and one.case.kind != "together":
                most = arrives(one, number)
                seen = one.arrived(moment)
                told = f"{one.told}: at most {most:,} bytes waited for when unit {number} is at work"
                yield Finding(seen <= most, told, f"{seen:,}", one.answer.rank)


def _bytes_of_units(case: Case) -> Callable[[_Pass, int], int] | None:
    """(a pass, a unit) -> the bytes that have been waited for when it is at work, at most, if each of its
    parameters is padded. None where a unit is called twice or by some alone, or needs another's weights.
    """
    units = net_of(case).units()
    own = [[p for home, p in homes_of(units).values() if home == n] for n in range(len(units))]
    odd = {"tied", "borrowed", "twice", "skipped", "unused", "ahead"}
    if odd & set(case.params.get("parts", ())):
        return None

    def most(one: _Pass, number: int) -> int:
        so_far = own[: number + 1] if one.direction == FORWARD else own[number:]
        size = place_of(case, one.answer.rank).size
        return sum(-(-p.numel() // size) * p.element_size() for unit in so_far for p in unit)

    return most


def leave_in_turn(evidence: Evidence) -> Iterator[Finding]:
    """When backward is in a unit, the gradients of one more at most have not begun to leave."""
    for one in _passes(evidence):
        if one.direction == BACKWARD:
            so_far = set[int]()
            for number, moment in one.moments:
                so_far.add(number)
                sizes = [one.used[0].scattered[n] for n in so_far - {number}]
                wanted = sum(sizes) - max(sizes, default=0)
                seen = one.begun("reduce_scatter", moment)
                told = f"{one.told}: at least {wanted:,} bytes of reduce_scatters begun in unit {number}"
                yield Finding(seen >= wanted, told, f"{seen:,}", one.answer.rank)
