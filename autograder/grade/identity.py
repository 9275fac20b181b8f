"""What a dotted name stands for in this interpreter, whatever it is called: `enum.bltns` is builtins.

Libraries are looked at as they are loaded here; nothing is imported for a student's sake but what stands in
LIBRARIES, and no code of theirs runs: attributes are read from the tables that hold them.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Iterator
from functools import cache, lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType

from autograder.grade.needed_modules import NEEDED
from autograder.grade.watched_names import CALLS, MODULES, USUAL

# Modules that an answer may import, and that cost nothing to have here.
LIBRARIES = {
    *(name for name in NEEDED if name in sys.stdlib_module_names),
    *("concurrent.futures", "json.decoder", "json.encoder", "logging.handlers", "typing_extensions"),
}
_CODE = {"types.FunctionType": types.FunctionType, "types.CodeType": types.CodeType}
_OWN = {"torch", "labkit", "numpy"}  # their functions are told by the names they are called by


def full_names(dotted: str) -> list[str]:
    """The name, and the same from the last module on that it leads through, by that module's own name."""
    own = _own_name(dotted)
    return [dotted] if own == dotted else [dotted, own]


def module_of(dotted: str) -> str:
    """The own name of the module that a full name is; empty when it is none."""
    found, rest = _followed(dotted)
    return found[-1] if found and not rest else ""


def reached_otherwise(dotted: str) -> Iterator[tuple[str, str]]:
    """(own name, the name it is reached by) of modules that a full name leads through by another name."""
    written, *parts = dotted.split(".")
    for part in parts:
        written = f"{written}.{part}"
        if not (own := module_of(written)):
            return
        if own != written:
            yield own, written


def watched_function(dotted: str) -> str:
    """The own name of a watched function or class, where a full name that is not it stands for it."""
    found = _object(dotted)
    own = _watched().get(id(found), "")
    if not own and isinstance(found, FunctionType | BuiltinFunctionType | type):
        home = str(getattr(found, "__module__", ""))
        top = home.partition(".")[0]
        if top not in (*_OWN, "builtins") and (home in MODULES or top in MODULES):
            own = f"{home}.{found.__name__}"
    return "" if own == dotted else own


def exported(module: str) -> list[str]:
    """Names that `from module import *` gives, as far as the module is loaded here."""
    found = _loaded(module)
    if found is None:
        return []
    table = vars(found)
    names = table.get("__all__") or [name for name in table if not name.startswith("_")]
    return [name for name in names if isinstance(name, str)]


def _own_name(dotted: str) -> str:
    found, rest = _followed(dotted)
    return ".".join([found[-1], *rest]) if found else dotted


@cache
def _watched() -> dict[int, str]:
    """By identity: what runs text or makes functions of code, and reads what was pickled."""
    by_name: dict[str, object] = {
        f"builtins.{name}": vars(builtins)[name] for name in CALLS & {*dir(builtins)}
    }
    by_name |= _CODE
    by_name |= {name: _object(name) for name in (*USUAL, *MODULES) if _is_function(name)}
    return {id(found): name for name, found in by_name.items() if found is not None}


def _is_function(dotted: str) -> bool:
    return isinstance(_object(dotted), FunctionType | BuiltinFunctionType | type)


def _object(dotted: str) -> object:
    """What a full name stands for; None where that cannot be told from the tables alone."""
    modules, rest = _followed(dotted)
    found: object = _loaded(modules[-1]) if modules else None
    for part in rest:
        found = _entry(found, part)
    return found


def _entry(thing: object, name: str) -> object:
    """An attribute, from the tables of a module, a class or an object, without running anything."""
    tables = [vars(kind) for kind in type.mro(thing)] if isinstance(thing, type) else [_table(thing)]
    found = next((table[name] for table in tables if name in table), None)
    return found.__func__ if isinstance(found, staticmethod) else found


def _table(thing: object) -> dict[str, object]:
    try:
        table = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return table if isinstance(table, dict) else {}


def _followed(dotted: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The own names of the modules that a full name leads through, one after the other, and what follows."""
    if _loaded(dotted.partition(".")[0]) is None:
        return (), (*dotted.split("."),)  # a student's own names, which are not worth keeping
    return _followed_from_a_module(dotted)


@lru_cache(maxsize=10_000)
def _followed_from_a_module(dotted: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, *rest = dotted.split(".")
    module = _loaded(first)
    if module is None:
        return (), (first, *rest)
    found = [first]
    while rest:
        inner = vars(module).get(rest[0])
        written = f"{found[-1]}.{rest[0]}"
        if not isinstance(inner, ModuleType):
            inner = _loaded(written) if inner is None else None
        if inner is None:
            break
        own = inner.__name__ if isinstance(inner.__name__, str) else written
        found.append(own if sys.modules.get(own) is inner else written)
        module = inner
        del rest[0]
    return (*found,), (*rest,)


def _loaded(name: str) -> ModuleType | None:
    if name in LIBRARIES and name not in sys.modules:
        importlib.import_module(name)
    found = sys.modules.get(name)
    return found if isinstance(found, ModuleType) else None
