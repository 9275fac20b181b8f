"""`getattr`, `setattr` and `delattr` as students' code has them.

They are Python's own, but for attributes that lead out of an answer to the interpreter and to all that is
loaded: these are read in no exercise, and what is not there cannot be had by a name that is made when the
code runs. Where such a name is written out, grading flags it (`autograder.grade.scan`). What functions are
often asked for with a default, `getattr(function, "__self__", None)`, gives that default and is no flag.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

LEADS_OUT = frozenset(
    {
        *("__globals__", "__builtins__", "__code__", "__closure__", "__self__", "__func__", "__wrapped__"),
        *("__subclasses__", "__bases__", "__base__", "__mro__", "__getattribute__", "__reduce__"),
        *("__reduce_ex__", "__loader__", "__spec__", "__path__", "__import__", "__traceback__"),
        *("__match_args__", "__instancecheck__", "__array_interface__", "__array_struct__", "_C"),
        *("f_back", "f_globals", "f_locals", "f_builtins", "tb_frame", "tb_next", "gi_frame", "cr_frame"),
        *("_labkit_queue", "_labkit_queues", "_labkit_machine", "_labkit_moment", "_labkit_before"),
        *("gi_code", "cr_code", "ag_code", "f_code", "co_code", "co_consts", "co_names"),
        *("__get__", "__set__", "__delete__", "__objclass__", "wrapper_getattr", "wrapper_setattr"),
        *("ag_frame", "_getframe", "_current_frames", "settrace", "setprofile", "addaudithook"),
    }
)

# What code that is handed a function asks it for, with a default: whose method it is, what it wraps.
ASKED_OF_FUNCTIONS = frozenset({"__self__", "__func__", "__wrapped__", "__closure__", "__code__"})


def lookups() -> dict[str, Callable[..., Any]]:
    """The three by their names, to put into a module before its code is executed."""
    return {name: _without(getattr(builtins, name)) for name in ("getattr", "setattr", "delattr")}


def _without(own: Callable[..., Any]) -> Callable[..., Any]:
    def look_up(thing: object, name: str, *more: object) -> Any:
        # What it is, not what a class of the student's own says that it is equal to.
        named = str.__str__(name) if isinstance(name, str) else ""
        if named in ASKED_OF_FUNCTIONS and own is builtins.getattr and len(more) == 1:
            return more[0]
        if named in LEADS_OUT:
            raise AttributeError(f"no exercise needs {named}: it is not looked up here")
        return own(thing, name, *more)

    look_up.__name__ = look_up.__qualname__ = own.__name__
    return look_up
