"""Sends what a cell uses from the notebook to a session's ranks, and takes it in there.

Functions and classes of the notebook live in the rank's own namespace once they are there: a function that
uses a variable `model` finds the rank's `model`. What a rank has assigned itself is never overwritten.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import pickle
import sys
import types
from collections.abc import Mapping
from typing import Any

from labkit.launch.handover.pickling import Pickler

_LARGEST = 64 << 20  # bytes of one name's value; larger data belongs on the ranks


def rank_namespace() -> dict[str, Any]:
    """Where a rank's cells live, and where functions from the notebook look up their globals."""
    return vars(sys.modules["__main__"])


class _RanksNamespace(dict[str, Any]):
    """Stands for the notebook's globals in a pickle, and becomes the rank's namespace."""

    def __reduce__(self) -> Any:
        return rank_namespace, ()


def used_names(source: str, file: str = "<cell>") -> set[str]:
    """The global names that a cell reads and does not assign itself. SyntaxError when it is not Python."""
    tree = ast.parse(source, file)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return read - defined - assigned - set(dir(builtins))


class Sender:
    """The notebook's side: remembers what the ranks already have."""

    def __init__(self) -> None:
        self._sent: dict[str, bytes] = {}

    def pack(self, source: str, notebook: Mapping[str, Any], file: str) -> bytes | None:
        """What a cell needs and the ranks do not have in this form yet, pickled; None when it is nothing."""
        wanted = {
            name: notebook[name] for name in sorted(used_names(source, file)) if _travels(name, notebook)
        }
        news = {}
        for name, value in wanted.items():
            digest = _digest(value, notebook)
            if digest is not None and self._sent.get(name) != digest:
                self._sent[name] = digest
                news[name] = value
        return _pickle(news, notebook) if news else None


def _travels(name: str, notebook: Mapping[str, Any]) -> bool:
    return (
        name in notebook
        and not name.startswith("_")
        and name not in ("In", "Out", "exit", "quit", "get_ipython")
    )


def _digest(value: Any, notebook: Mapping[str, Any]) -> bytes | None:
    """A digest of a value's pickle; None when it cannot be sent (the cell will miss the name, and say so)."""
    if isinstance(value, types.ModuleType):
        return value.__name__.encode()
    try:
        data = _pickle(value, notebook)
    except Exception:
        return None
    return hashlib.sha256(data).digest() if len(data) <= _LARGEST else None


def _pickle(value: Any, notebook: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    pickler = Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.globals_ref[id(notebook)] = _RanksNamespace(__name__="__main__")
    pickler.dump(value)
    return file.getvalue()


class Receiver:
    """The rank's side."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._received: dict[str, Any] = {}

    def take(self, packed: bytes) -> None:
        """Put what came into the namespace, except over what the rank has assigned itself."""
        own = {
            name: value
            for name, value in self.namespace.items()
            if name not in self._received or self._received[name] is not value
        }
        before = dict(self.namespace)
        self.namespace.update(pickle.loads(packed))
        for name, value in list(self.namespace.items()):
            if name in own:
                self.namespace[name] = own[name]
            elif before.get(name, self) is not value:
                self._received[name] = value
