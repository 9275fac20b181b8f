"""The rank's side of what cells use of the notebook: takes it in, and knows what it has changed since."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.launch.handover.identity import TENSORS, Content, Hold, hold, tensor_module


class _Unpickler(pickle.Unpickler):
    """Finds objects that the rank has by their numbers."""

    def __init__(self, file: io.BytesIO, buffers: Sequence[Any], objects: Mapping[int, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self.stored: list[tuple[Any, Any]] = []  # storages, and the bytes they took
        self._objects = objects

    def persistent_load(self, number: int) -> Any:
        """See `pickle.Unpickler.persistent_load`."""
        return self._objects[number]

    def find_class(self, module: str, name: str, /) -> Any:
        """See `pickle.Unpickler.find_class`."""
        found = super().find_class(module, name)
        if module != TENSORS or name not in ("store", "fill"):
            return found

        def noted(*arguments: Any) -> Any:
            storage = found(*arguments)
            self.stored.append((storage, arguments[-1]))
            return storage

        return noted


class Receiver:
    """What came from the notebook, and as what: objects by number with their digests, and names."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._objects: dict[int, Hold] = {}
        self._digests: dict[int, bytes] = {}
        self._bound: dict[str, Hold] = {}
        self._bytes: dict[int, Any] = {}  # of storages, as they came: mapped memory that all ranks share
        self._numbers: dict[int, int] = {}  # of the objects, by their identity

    def take(self, packed: Mapping[str, Any]) -> None:
        """Do as `Offer.pack` says. Objects that are here take their new content and stay what they are."""
        for number in packed["gone"]:
            for known_of in (self._objects, self._digests, self._bytes):
                known_of.pop(number, None)
        before = {number: held() for number, held in self._objects.items()}
        kinds: dict[str, type] = {"list": list, "dict": dict, "set": set}
        known = {
            **before,
            **{n: kinds[kind]() for n, kind in packed["containers"].items() if n not in before},
        }
        unpickler = _Unpickler(io.BytesIO(packed["data"]), packed["parcel"].open(), known)
        names, contents, objects = unpickler.load()
        for number, items in contents.items():
            _fill(known[number], items)
            objects[number] = known[number]
        self._replace({number: (before.get(number), value) for number, value in objects.items()})
        self.namespace.update(names)
        self._bound |= {name: hold(value) for name, value in names.items()}
        self._objects |= {number: hold(value) for number, value in objects.items()}
        self._look_at_objects()
        for storage, data in unpickler.stored:
            self._came(self._numbers[id(storage)], data)
        self._digests |= packed["digests"]
        for number in objects.keys() - packed["digests"].keys():
            self._digests[number] = self._content(objects[number]).digest

    def answer(self, names: Mapping[str, int | bytes | None], numbers: Sequence[int]) -> dict[str, Any]:
        """Of what the notebook has anew: what is not here ("absent"), and what the rank has changed itself.

        names: with the digests of values, which do not matter where they are the same here.
        """
        self._look_at_objects()
        absent = [name for name in names if name not in self.namespace]
        own = [name for name, token in names.items() if name not in absent and self._is_own(name, token)]
        return {"absent": absent, "own": own, "objects": [n for n in numbers if self._is_changed(n)]}

    def lost(self) -> dict[str, list[Any]]:
        """What came from the notebook and is no longer here; it is forgotten."""
        names = [name for name in self._bound if name not in self.namespace]
        objects = [number for number, held in self._objects.items() if held() is None]
        for name in names:
            del self._bound[name]
        for number in objects:
            del self._objects[number]
        return {"names": names, "objects": objects}

    def _came(self, number: int, data: Any) -> None:
        """Keep a storage's bytes to compare with, where they cost no memory of this rank's own."""
        self._bytes.pop(number, None)
        if isinstance(data, memoryview):
            self._bytes[number] = data

    def _replace(self, anew: Mapping[int, tuple[Any, Any]]) -> None:
        """The names of objects that could not take their new content go to those that came instead."""
        others = {id(old): new for old, new in anew.values() if old is not None and old is not new}
        for name, held in list(self._bound.items()) if others else ():
            value = self.namespace.get(name)
            if id(value) in others and held() is value:
                self.namespace[name] = others[id(value)]
                self._bound[name] = hold(others[id(value)])

    def _is_own(self, name: str, token: int | bytes | None) -> bool:
        value = self.namespace[name]
        held = self._bound.get(name)
        if held is None or held() is not value:
            return not isinstance(token, bytes) or self._digest(value) != token
        return self._is_changed_below(value)

    def _is_changed(self, number: int) -> bool:
        held = self._objects.get(number)
        value = held() if held is not None else None
        return value is not None and self._look(value, number) is None

    def _is_changed_below(self, value: Any) -> bool:
        """Whether an object that came has changed, among those that are reached from a value."""
        todo, seen = [value], set[int]()
        while todo:
            value = todo.pop()
            number = self._number(value)
            if number is None or number not in seen:
                seen |= {number} if number is not None else set()
                children = self._look(value, number)
                if children is None:
                    return True
                todo += children
        return False

    def _look(self, value: Any, number: int | None) -> list[Any] | None:
        """The objects in this one that came; None when it has changed, or can no longer be pickled."""
        tensors = tensor_module()
        if number in self._bytes and tensors is not None:
            return [] if tensors.same(value, self._bytes[number]) else None
        try:
            content = self._content(value)
        except Exception:
            return [] if number is None else None
        return content.children if number is None or content.digest == self._digests[number] else None

    def _digest(self, value: Any) -> bytes | None:
        """None for what cannot be pickled: the rank has put something there that did not come."""
        try:
            return self._content(value).digest
        except Exception:
            return None

    def _content(self, value: Any) -> Content:
        return Content(value, self.namespace, self._number)

    def _number(self, value: Any) -> int | None:
        return self._numbers.get(id(value))

    def _look_at_objects(self) -> None:
        living = ((number, held()) for number, held in self._objects.items())
        self._numbers = {id(value): number for number, value in living if value is not None}


def _fill(container: Any, items: list[Any]) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(items)
