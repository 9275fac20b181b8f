"""Finds which part of a function or its arguments cannot travel to a rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle


def find_unsendable(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Names the part that does not pickle ("argument 2", "`lock`, which the function uses"); and the part."""
    named = {f"argument {index + 1} of the function": value for index, value in enumerate(args)}
    named |= {f"argument {name!r} of the function": value for name, value in kwargs.items()}
    for where, value in named.items():
        if not _pickles(value):
            return _innermost(where, value)
    for name, value in _used_by(fn).items():
        if not _pickles(value):
            return _innermost(f"`{name}`, which the function uses,", value)
    return "the function", fn


def _used_by(fn: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        found = inspect.getclosurevars(fn)
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def _innermost(where: str, value: Any, depth: int = 0) -> tuple[str, Any]:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{where}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{where}[{index}]", part) for index, part in enumerate(value)]
    for label, part in parts if depth < 5 else ():
        if not _pickles(part):
            return _innermost(label, part, depth + 1)
    return where, value


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
