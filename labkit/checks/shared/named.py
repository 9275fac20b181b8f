"""What a notebook's names lead to: it may be there before anybody weighs, and be filled afterwards."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from torch import nn

from labkit.checks.source.submission import MODULE_NAME

MOST_OBJECTS = 100_000  # that are gone through
_ENDS = (ModuleType, BuiltinFunctionType, str, int, float, complex)


def named_objects() -> list[object]:
    """What the notebook's names and its classes' attributes stand for."""
    names = vars(sys.modules.get(MODULE_NAME, object))
    classes = [thing for thing in names.values() if isinstance(thing, type) and _is_own(thing)]
    return [value for owner in (names, *map(vars, classes)) for value in owner.values()]


def led_to_by_names() -> Iterator[object]:
    """What the names lead to through containers, objects, functions' defaults and closures, and attributes of
    the notebook's own classes.

    Modules of torch's classes are passed over: whoever keeps a list of those that were handed in keeps
    nothing of them.
    """
    waiting, seen = named_objects(), set[int]()
    while waiting and len(seen) < MOST_OBJECTS:
        thing = waiting.pop()
        if id(thing) not in seen and not isinstance(thing, _ENDS):
            seen.add(id(thing))
            yield thing
            waiting += _next(thing)


def _next(thing: object) -> list[object]:
    match thing:
        case FunctionType():  # not its globals: they are the names
            own: list[object] = [thing.__defaults__, thing.__kwdefaults__, thing.__dict__, thing.__closure__]
            return own if _is_own(thing) else []
        case MethodType():
            return [thing.__self__, thing.__func__]
        case type():
            return list(vars(thing).values()) if _is_own(thing) else []
        case nn.Module() if not _is_own(type(thing)):
            return []
        case _:
            return gc.get_referents(thing)


def _is_own(thing: FunctionType | type) -> bool:
    return thing.__module__ == MODULE_NAME
