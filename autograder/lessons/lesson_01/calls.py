"""Calls of the exercises of lesson 01 as evidence, and cases made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from autograder.lessons.lesson_01.memory_values import REFERENCE
from labkit.checks.case import Case
from labkit.checks.lesson_01.recorded_calls import arguments_of
from labkit.checks.shared.plain_numbers import EXACT
from labkit.theory.hardware import GPU
from labkit.theory.models import PRESETS, ModelConfig

WHOLE = 0.0  # the tolerance where whole numbers are asked for
UNSEEN = ", unseen"  # ends the names of these cases, so that they differ from the visible ones


@dataclass(frozen=True)
class Call:
    """One call as evidence for a property; `expected` is left to REFERENCE unless the call must raise.

    naming: what the text of the error must hold. twice: whether it is made once more, and must give a dict of
    its own.
    """

    property: str
    function: str
    arguments: dict[str, Any]
    tolerance: float = EXACT
    may_raise: bool = False
    naming: tuple[str, ...] = ()
    twice: bool = False

    def to_json(self) -> dict[str, Any]:
        plain = {k: asdict(v) if isinstance(v, ModelConfig | GPU) else v for k, v in self.arguments.items()}
        return {
            "function": self.function,
            "arguments": plain,
            "tolerance": self.tolerance,
            "may_raise": self.may_raise,
            **({"naming": list(self.naming)} if self.naming else {}),
            **({"twice": True} if self.twice else {}),
            "told": f"{self.function}({', '.join(f'{k}={_told(v)}' for k, v in self.arguments.items())})",
        }


def _told(value: Any) -> str:
    if isinstance(value, GPU):
        return value.name
    if isinstance(value, ModelConfig):
        return value.name if value in PRESETS.values() else _written(value)
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _written(config: ModelConfig) -> str:
    """A shape as the code that makes it, with every field that is not what it would be if left out."""
    needed = {field.name: getattr(config, field.name) for field in fields(config)[:5]}
    plain = ModelConfig(**needed, name=config.name)
    others = {field.name: getattr(config, field.name) for field in fields(config)[5:]}
    more = {name: value for name, value in others.items() if value != getattr(plain, name)}
    return f"ModelConfig({', '.join(f'{k}={v!r}' for k, v in {**needed, **more}.items())})"


def _case(calls: list[Call], seed: int, own_parts: bool = False) -> Case:
    """One case for calls that are all evidence for one property."""
    data = [call.to_json() for call in calls]
    values = [
        None if call.may_raise else REFERENCE[call.function](**arguments_of(plain))
        for call, plain in zip(calls, data, strict=True)
    ]
    name = calls[0].property
    label = f"{name}{UNSEEN}"
    expected = {"values": values}
    return Case(label, 1, {"calls": data}, seed, kind=name, own_parts=own_parts, expected=expected)


def cases_of(calls: Iterable[Call], seed: int) -> list[Case]:
    """A case for each property that these calls are evidence for."""
    by_property: dict[str, list[Call]] = {}
    for call in calls:
        by_property.setdefault(call.property, []).append(call)
    return [_case(some, seed, own_parts=name == "own-parts") for name, some in by_property.items()]
