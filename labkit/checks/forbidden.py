"""Names an exercise forbids: calling one raises, whether its module is loaded already or only later.

A module that nobody has imported is not imported for this: some cost seconds on every rank. It is watched
for instead.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

_ABSENT = object()  # of a class that inherited it


class ForbiddenCall(Exception):
    """The student's code called what the exercise asks them to build."""


@contextlib.contextmanager
def forbidding(names: Sequence[str]) -> Iterator[None]:
    """Calling one of these dotted names inside the block raises ForbiddenCall."""
    finder = _Finder({})
    for dotted in names:
        module, name = dotted.rsplit(".", 1)
        finder.names.setdefault(module, []).append(name)
    for module in finder.names:
        if module in sys.modules:
            finder.forbid(sys.modules[module])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.allow()


class _Finder(MetaPathFinder):
    """Replaces names in the modules it is asked about, as soon as they have been loaded."""

    def __init__(self, names: dict[str, list[str]]):
        self.names = names
        self._originals: list[tuple[ModuleType | type, str, Any]] = []

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in self.names else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_forbid(module: ModuleType) -> None:
            load(module)
            self.forbid(module)

        spec.loader.exec_module = load_and_forbid  # type: ignore[method-assign]
        return spec

    def forbid(self, module: ModuleType) -> None:
        """Have each forbidden name refuse that the module has; where it is graded, some are taken away."""
        for name in self.names[module.__name__]:
            found = getattr(module, name, None)
            if isinstance(found, type):
                self._refuse_objects(found, f"{module.__name__}.{name}")
            elif found is not None:
                self._replace(module, name, _refusal(f"{module.__name__}.{name}"))

    def _refuse_objects(self, kind: type, dotted: str) -> None:
        """The class stays: modules that are loaded only now name it in annotations, or register it."""
        self._replace(kind, "__init__", _refusal(dotted))
        self._replace(kind, "__init_subclass__", classmethod(_refusal(dotted)))

    def _replace(self, owner: ModuleType | type, name: str, refusal: Any) -> None:
        self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, refusal)

    def allow(self) -> None:
        """Put everything back."""
        for owner, name, original in reversed(self._originals):
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def refuse(dotted: str) -> NoReturn:
    """Raise ForbiddenCall for a forbidden name."""
    raise ForbiddenCall(f"this exercise is about building what {dotted} does; it may not be called here")


def _refusal(dotted: str) -> Any:
    def refused(*_: object, **__: object) -> None:
        refuse(dotted)

    return refused
