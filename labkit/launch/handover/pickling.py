"""How a function and its arguments travel to a rank, and which part of them cannot."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

_DEEPEST = 10  # of what is nested in something that does not pickle: it may hold itself


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, by which modules of a class of their own travel by name too; cached functions travel.

    torch.distributed.config is one, and cloudpickle takes a function that uses torch.distributed and
    something called `config` to use it.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            name = getattr(obj, "__name__", "")
            if sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
        if type(obj) is _CACHED and isinstance(obj.__wrapped__, FunctionType) and _by_value(obj.__wrapped__):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


_CACHED = type(functools.cache(len))


def _by_value(function: FunctionType) -> bool:
    """Whether no module that a rank could import has it: then it has to travel, cache or no cache."""
    return function.__module__ == "__main__" or function.__module__ not in sys.modules


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """As the notebook's `functools.cache` or `lru_cache` made it, with nothing in the cache."""
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any) -> bytes:
    """The value as a rank unpickles it. Raises what pickle raises for what cannot be sent."""
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def current_folder() -> str:
    """The folder that this process is in, and its ranks will be. FileNotFoundError where that is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        told = "the folder that this notebook was started in is gone: go to another with os.chdir(...)"
        raise FileNotFoundError(error.errno, told) from None


def import_path() -> list[str]:
    """This process's import path, for the ranks, with the current directory spelled out.

    Without what is no text, such as a Path: Python's import passes over it here too.
    """
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    return [current_folder() if entry == "" else entry for entry in entries]


def find_unsendable(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, Any]:
    """Names the part that does not pickle ("argument 2", "`lock`, which the function uses"); and the part."""
    named = {f"argument {index + 1} of the function": value for index, value in enumerate(args)}
    named |= {f"argument {name!r} of the function": value for name, value in kwargs.items()}
    named |= {f"`{name}`, which the function uses,": value for name, value in _used_by(fn).items()}
    for where, value in named.items():
        if not _pickles(value):
            path, part = innermost(value)
            return where + (f" (its {path})" if path.startswith(".") else path), part
    return "the function", fn


def _used_by(fn: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        found = inspect.getclosurevars(fn)
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def innermost(
    value: Any, path: str = "", dump: Callable[[Any], object] = dumps, depth: int = 0
) -> tuple[str, Any]:
    """The innermost part of a nested value that does not pickle, after how it is reached, "['a'][2].b".

    path: how the value itself is. dump: pickles a part, or raises anything.
    """
    for label, part in _parts(value, path) if depth < _DEEPEST else ():
        if not _pickles(part, dump):
            return innermost(part, label, dump, depth + 1)
    return path, value


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, (type, ModuleType)):
        return []
    return [(f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def _pickles(value: Any, dump: Callable[[Any], object] = dumps) -> bool:
    try:
        dump(value)
    except Exception:
        return False
    return True
