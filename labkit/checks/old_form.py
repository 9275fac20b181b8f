"""Lessons whose exercises still have one judge for all their properties. Goes when the last is converted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from labkit.checks import exercise as new
from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Property, Run
from labkit.checks.rank import Rank


@dataclass(frozen=True)
class Finding:
    """One observation for or against the property it names."""

    property: str
    passed: bool
    expected: str = ""
    seen: str = ""
    rank: int | None = None


Judge = Callable[[Case, Inputs, "list[RankAnswer]"], Iterable[Finding]]


@dataclass(frozen=True)
class _Evidence(new.Evidence):
    judge: Judge

    @cached_property
    def found(self) -> list[Finding]:
        return list(self.judge(self.case, self.inputs, list(self.answers)))


def _of(name: str) -> new.Judge:
    def judge(evidence: _Evidence) -> Iterable[new.Finding]:
        for f in evidence.found:
            if f.property == name:
                yield new.Finding(f.passed, f.expected, f.seen, f.rank)

    return judge


class Exercise(new.Exercise):
    """An exercise whose judge names the property of each finding, and whose cases name what they show."""

    def __init__(
        self,
        id: str,
        title: str,
        names: tuple[str, ...],
        properties: Iterable[Property],
        cases: Callable[[int], list[Case]],
        inputs: Callable[..., Inputs],
        on_rank: Callable[[Rank], None],
        judge: Judge,
        **more: Any,
    ) -> None:
        runs = {"": Run(on_rank, inputs, evidence=partial(_Evidence, judge=judge))}
        table = tuple(replace(p, on={"": _of(p.name)}) for p in properties)
        super().__init__(id, title, names, runs, cases, table, **more)


def numbers(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    return Property(name, "numbers", points, says, usual_cause)


def mechanism(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    return Property(name, "mechanism", points, says, usual_cause)


def robustness(name: str, points: int, says: str, usual_cause: str = "") -> Property:
    return Property(name, "robustness", points, says, usual_cause)
