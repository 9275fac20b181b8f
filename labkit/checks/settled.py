"""What a student's functions give, made while they are watched: not when a check looks at it later."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from labkit.checks.source.submission import MODULE_NAME

_DEEPEST = 3  # containers in one another: a schedule has a list of lists
_NO_SEQUENCE = (Tensor, nn.Module, dict)
_USUAL_WAYS = {way for kind in (list, tuple, str, bytes) for way in (kind.__iter__, kind.__getitem__)}


class AtOnce(ModuleType):
    """A module whose functions, asked from outside, give what is `settled`. Among themselves they are as they
    were. A class that has a function's name is asked as one.
    """

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _at_once(found) if callable(found) and not _is_class(name, found) else found


def _is_class(name: str, found: object) -> bool:
    return isinstance(found, type) and name != name.lower()


def _at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def ask(*args: Any, **kwargs: Any) -> Any:
        return settled(function(*args, **kwargs))

    return ask


def settled(value: Any, depth: int = _DEEPEST) -> Any:
    """`value`, and where it or what it holds computes as one goes through it, a tuple of all that comes."""
    kind = type(value)
    if kind is list or kind is tuple:
        found = [settled(each, depth - 1) for each in value] if depth else value
        return value if all(map(_same, found, value)) else kind(found)
    if kind is dict:
        entries = {key: settled(each, depth - 1) for key, each in value.items()} if depth else value
        return value if all(map(_same, entries.values(), value.values())) else entries
    return tuple(value) if _computes_as_it_goes(value) else value


def _same(one: object, other: object) -> bool:
    return one is other


def _computes_as_it_goes(value: object) -> bool:
    """An iterator, such as a generator, or an instance of a class of the student's that is gone through in a
    way of its own.
    """
    kind = type(value)
    if kind.__module__ != MODULE_NAME:
        return isinstance(value, Iterator)
    ways = [way for name in ("__iter__", "__getitem__") if (way := getattr(kind, name, None)) is not None]
    return not isinstance(value, _NO_SEQUENCE) and any(way not in _USUAL_WAYS for way in ways)
