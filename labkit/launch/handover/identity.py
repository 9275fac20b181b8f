"""Objects that a notebook and its ranks both have: which keep their identity, and how they are pickled.

An object that keeps its identity has a number, and is pickled as this number wherever the other side has it.
These are objects that can be told apart as long as they live (by a weak reference: modules, optimizers,
tensors, the storages of tensors, instances, the notebook's classes), and of those that cannot, and of lists,
dicts and sets of all kinds, what has a name in the notebook. Everything else travels by value each time:
numbers, texts, tuples, functions.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import hashlib
import importlib
import io
import pickle
import re
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from labkit.launch.handover.pickling import Pickler

Hold = Callable[[], Any]  # gives an object; None when it is gone
Link = Callable[[Any], int | None]  # the number of an object that the other side has, or will have
TENSORS = "labkit.launch.handover.tensors"
CONTAINERS = (list, dict, set)
_CHANGEABLE = (*CONTAINERS, bytearray, types.SimpleNamespace)

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, tuple))
_BY_VALUE = (
    *CONTAINERS,
    frozenset,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    enum.Enum,
    re.Pattern,
    weakref.ref,
)


def hold(value: Any) -> Hold:
    """A weak reference, or a strong one to what takes no weak one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def keeps_identity(value: Any) -> bool:
    """Whether it is no list, dict or set, and can be told apart as long as it lives."""
    kind = type(value)
    if issubclass(kind, type):
        return _is_of_notebook(value)
    return getattr(kind, "__weakrefoffset__", 0) != 0 and not issubclass(kind, _BY_VALUE)


def keeps_identity_by_name(value: Any) -> bool:
    """Whether it can be told apart as long as it has a name: it can change, and takes no weak reference."""
    kind = type(value)
    return kind in CONTAINERS or issubclass(kind, _CHANGEABLE) or _has_slots_to_set(kind)


def _has_slots_to_set(kind: type) -> bool:
    """Whether instances have slots alone: no weak references, and no `__setattr__` that refuses."""
    if "__slots__" not in vars(kind) or kind.__weakrefoffset__ or issubclass(kind, tuple):
        return False
    free = kind.__setattr__ is object.__setattr__
    return free and (dataclasses.is_dataclass(kind) or _is_of_notebook(kind))


def _is_of_notebook(kind: type) -> bool:
    """Whether a class travels by value, because no module that ranks could import has it."""
    found: Any = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or found is None:
        return True
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not kind


def rank_namespace() -> dict[str, Any]:
    """Where a rank's cells live, and where functions from the notebook look up their globals."""
    return vars(sys.modules["__main__"])


class _RanksNamespace(dict[str, Any]):
    """Stands for the notebook's globals in a pickle, and becomes the rank's namespace."""

    def __reduce__(self) -> Any:
        return rank_namespace, ()


class There:
    """Stands for an object of the other side in a pickle."""

    def __init__(self, number: int) -> None:
        self.number = number


class SharedPickler(Pickler):
    """Pickles numbers for objects that the other side has.

    namespace: globals that the ranks have as names of their own: functions do not bring them along, `names`
    collects which they use. there: whether the other side has an object of this number already, so that it
    takes the content that comes. apart: as pickle's `buffer_callback`.
    """

    def __init__(
        self,
        file: io.BytesIO,
        namespace: Any,
        link: Link,
        there: Callable[[Any], int | None] = lambda _: None,
        apart: Callable[[pickle.PickleBuffer], bool] | None = None,
    ):
        super().__init__(file, pickle.HIGHEST_PROTOCOL, apart)
        self.globals_ref[id(namespace)] = _RanksNamespace(__name__="__main__")
        self.names: set[str] = set()
        self._namespace, self._link, self._there = namespace, link, there

    def persistent_id(self, obj: Any) -> int | None:
        """See `pickle.Pickler.persistent_id`."""
        if type(obj) in _ATOMS:
            return None
        return obj.number if type(obj) is There else self._link(obj)

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        if type(obj) is types.FunctionType and obj.__globals__ is self._namespace:
            return self._function(obj)
        number = self._there(obj) if keeps_identity(obj) or keeps_identity_by_name(obj) else None
        place = None if number is None else There(number)
        tensors = tensor_module()
        if tensors is not None and tensors.is_plain(obj):
            return tensors.reduce_tensor(obj, place)
        if tensors is not None and tensors.is_storage(obj):
            return tensors.reduce_storage(obj, place)
        reduced = super().reducer_override(obj)
        if place is None or isinstance(obj, type):
            return reduced
        return _into(place, obj, self._reduced(obj) if reduced is NotImplemented else reduced)

    def _reduced(self, obj: Any) -> Any:
        registered = self.dispatch_table.get(type(obj))
        return registered(obj) if registered else obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def _function(self, function: Any) -> Any:
        reduced = super().reducer_override(function)
        if isinstance(reduced, tuple):
            slots = reduced[2][1]
            self.names |= slots["__globals__"].keys()
            slots["__globals__"] = {}
        return reduced


def tensor_module() -> Any:
    """The module for tensors; None where torch is not imported."""
    if "torch" not in sys.modules:
        return None
    return importlib.import_module(TENSORS)


def _into(place: There, obj: Any, reduced: Any) -> Any:
    """Of a `__reduce__` that makes an object anew: one that has the other side's object take the content.

    Where that object was made from its content, as a deque is, it cannot be: a new one comes then.
    """
    if not isinstance(reduced, tuple):
        return reduced
    padded: tuple[Any, ...] = reduced + (None,) * (6 - len(reduced))
    make, _, state, items, pairs, setter = padded
    made_bare = make in (copyreg.__newobj__, copyreg._reconstructor)  # type: ignore[attr-defined]
    if not made_bare and type(obj) not in (OrderedDict, defaultdict):
        return reduced
    same = _same if items is None and pairs is None else _emptied
    if setter is None and not hasattr(obj, "__setstate__"):
        state, setter = state or {}, _take_state
    return same, (place,), state, items, pairs, setter


def _same(obj: Any) -> Any:
    return obj


def _emptied(obj: Any) -> Any:
    obj.clear()
    return obj


def _take_state(obj: Any, state: Any) -> None:
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if hasattr(obj, "__dict__"):
        vars(obj).clear()
        vars(obj).update(attributes or {})
    for name, value in (slots or {}).items():
        setattr(obj, name, value)


class Content:
    """What one object is, without the objects in it that have numbers.

    digest: of its pickle. size: bytes. children: the numbered objects in it. names: globals that functions in
    it use. Raises what pickle raises for what cannot be pickled.
    """

    def __init__(self, value: Any, namespace: Any, link: Link) -> None:
        self.children: list[Any] = []
        self.names: set[str] = set()
        tensors = tensor_module()
        if tensors is not None and tensors.is_storage(value):
            self.digest, self.size = tensors.digest(value), len(value)
            return
        file = io.BytesIO()

        def link_children(obj: Any) -> int | None:
            number = None if obj is value else link(obj)
            if number is not None:
                self.children.append(obj)
            return number

        pickler = SharedPickler(file, namespace, link_children)
        pickler.dump(value)
        self.names = pickler.names
        self.digest, self.size = hashlib.sha256(file.getbuffer()).digest(), file.tell()
