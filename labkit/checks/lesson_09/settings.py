"""Calls of one setting each: a model, machines, a batch, and for some a plan, all as plain numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Run
from labkit.checks.lesson_09.given import machines_of, model_of, plan_of
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory.grid import GridPlan

Setting = Mapping[str, Any]


def setting(
    model: Mapping[str, Any], machines: Mapping[str, Any], batch: int, sequence: int, **plan: Any
) -> dict[str, Any]:
    """A setting; plan: the fields of a GridPlan, if there is one."""
    made = {"model": dict(model), "machines": dict(machines), "batch": batch, "sequence": sequence}
    return made | ({"plan": plan} if plan else {})


def case_of(name: str, kind: str, settings: Sequence[Setting], seed: int, timeout: float = 20.0) -> Case:
    """One call a setting."""
    params = {"settings": list(settings)}
    return Case(name, 1, params, seed, kind=kind, own_parts=kind == "own-parts", timeout=timeout)


def asks(name: str, told: Callable[[Any], JSON]) -> Run:
    """Calls the student's function for every setting. Fact: answers, as `told` puts them."""

    def on_rank(rank: Rank) -> None:
        function = getattr(rank.student, name)
        rank.fact("answers", [told(function(*arguments(s))) for s in rank.params["settings"]])

    return Run(on_rank)


def arguments(one: Setting) -> list[Any]:
    """A setting as the arguments of a function: the plan first, if there is one."""
    plan = [plan_of(one)] if "plan" in one else []
    return [*plan, model_of(one), machines_of(one), one["batch"], one["sequence"]]


def answers_of(evidence: Evidence) -> Iterator[tuple[Setting, Any]]:
    """Each setting, and what was answered."""
    yield from zip(evidence.case.params["settings"], evidence.answers[0].facts["answers"], strict=True)


def numbers_by_name(found: Any) -> JSON:
    """A dict of numbers as JSON can hold it; anything else in words."""
    if not isinstance(found, Mapping):
        return f"{type(found).__name__}: {found}"[:200]
    return {str(name): number(value) for name, value in found.items()}


def number(value: Any) -> JSON:
    """A number, numpy's and torch's too; anything else in words."""
    found = number_or_words(value)
    return found if isinstance(found, str) else float(found)


def plan_in_numbers(found: Any) -> JSON:
    """The fields of a plan; anything else in words."""
    if not isinstance(found, GridPlan):
        return f"{type(found).__name__}: {found}"[:200]
    whole: dict[str, JSON] = {}
    for name in ("data", "tensor", "pipeline", "micro_batch", "zero"):
        value = getattr(found, name)
        try:
            whole[name] = operator.index(value)  # numpy's whole numbers and True too, but not 4.0
        except TypeError:
            return f"{name} is {value!r}"[:200]
    return whole | {"recompute": bool(found.recompute)}
