"""How a function and its arguments travel to a rank, and which part of them cannot."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, by which modules of a class of their own travel by name too.

    torch.distributed.config is one, and cloudpickle takes a function that uses torch.distributed and
    something called `config` to use it.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            name = getattr(obj, "__name__", "")
            if sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """The value as a rank unpickles it. Raises what pickle raises for what cannot be sent."""
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def import_path() -> list[str]:
    """This process's import path, for the ranks, with the current directory spelled out."""
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]


def find_unsendable(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, Any]:
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
        dumps(value)
    except Exception:
        return False
    return True
