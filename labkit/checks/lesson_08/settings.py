"""Asking a function of numbers for many settings, one call each, and judging what it gave or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused
from labkit.checks.shared.plain_numbers import number_or_words

Setting = list[Any]  # the arguments of one call; the first are the sizes of units or parameters
Ask = Callable[[Any, Setting], object]  # the student's names, and the arguments
ANY_SEQUENCE = "any-sequence"  # the kind of cases whose sizes come in a tuple


def settings_case(name: str, kind: str, settings: Sequence[Setting], seed: int) -> Case:
    """Arguments of as many calls as there are settings."""
    return Case(name, 1, {"settings": [list(s) for s in settings]}, seed, kind=kind)


def _plain(value: object) -> JSON:
    """What a function gave, as JSON can hold it; numbers, numpy's and torch's too, as they are, anything else
    in words.
    """
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return number_or_words(value)


def asks(call: Ask) -> Run:
    """Calls the student's function once a setting. Facts: answers, and whether settings were changed."""

    def on_rank(rank: Rank) -> None:
        holds = tuple if rank.case.kind == ANY_SEQUENCE else list
        handed = [[holds(sizes), *rest] for sizes, *rest in copy.deepcopy(rank.params["settings"])]
        rank.fact("answers", [_plain(call(rank.student, setting)) for setting in handed])
        rank.fact("changed", [[list(s), *rest] for s, *rest in handed] != rank.params["settings"])

    return Run(on_rank)


def refuses(call: Ask) -> Run:
    """Calls it with what it must refuse. Facts: refusal 0, refusal 1, ..., one a setting."""

    def on_rank(rank: Rank) -> None:
        for index, setting in enumerate(copy.deepcopy(rank.params["settings"])):
            with rank.expect_error(f"refusal {index}"):
                call(rank.student, setting)

    return Run(on_rank)


def each(find: Callable[[Setting, Any], Iterator[Finding]]) -> Judge:
    """A judge of every setting's answer."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        answers = evidence.answers[0].facts["answers"]
        for setting, seen in zip(evidence.case.params["settings"], answers, strict=True):
            yield from find(setting, seen)

    return judge


def each_is_refused(about: Callable[[Setting], str]) -> Judge:
    """A judge that every setting met a ValueError; about: a setting in words."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for index, setting in enumerate(evidence.case.params["settings"]):
            found = refused(f"refusal {index}", ["ValueError"], evidence.answers[0])
            yield replace(found, expected=f"a ValueError for {about(setting)}")

    return judge


def is_whole(number: JSON) -> bool:
    """Whether a number came as an int: what is counted has no fractions, and no float can slice a tensor."""
    return isinstance(number, int) and not isinstance(number, bool)


def sizes_in_words(numels: Sequence[int]) -> str:
    """The sizes, or how many there are."""
    return str(list(numels)) if len(numels) < 7 else f"of {sum(numels):,} parameters in {len(numels)} layers"
