"""Modules of labkit that hold an exercise's answer: neither a check nor grading lets them be imported.

The grader's sandbox does not even have their files. A check takes them out of this process for a while, so
that what passes it is not lost in grading for an import.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from labkit.checks import registry
from labkit.checks.exercise import Exercise


def hidden_modules(lesson: str) -> tuple[str, ...]:
    """What no exercise of a lesson may import ("labkit.theory.memory"): one sandbox serves them all."""
    files = sorted({file for exercise in registry.exercises(lesson) for file in exercise.hides})
    return tuple(f"labkit.{file.removesuffix('.py').replace('/', '.')}" for file in files)


def rules(exercise: Exercise) -> str:
    """What a student may not use here, in one sentence; empty where everything may be used."""
    modules, calls = ", ".join(hidden_modules(exercise.lesson)), ", ".join(exercise.forbids)
    told = [f"{modules} cannot be imported"] if modules else []
    told += [f"these may not be called: {calls}"] if calls else []
    return f"Here, and when it is graded, {'; '.join(told)}." if told else ""


@contextlib.contextmanager
def hiding(modules: Sequence[str]) -> Iterator[None]:
    """Importing one of these modules, or one below it, inside the block is an ImportError that says why."""
    finder = _Refusal(modules)
    taken = {name: module for name, module in sys.modules.items() if finder.hides(name)}
    attributes = [place for name, module in taken.items() if (place := _attribute_of(name, module))]
    for name in taken:
        del sys.modules[name]
    for parent, attribute, _ in attributes:
        delattr(parent, attribute)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(taken)
        for parent, attribute, module in attributes:
            setattr(parent, attribute, module)


def _attribute_of(name: str, module: ModuleType) -> tuple[ModuleType, str, ModuleType] | None:
    """Where a loaded module stands in its package."""
    package, _, last = name.rpartition(".")
    parent = sys.modules.get(package)
    return (parent, last, module) if parent is not None and vars(parent).get(last) is module else None


class _Refusal(MetaPathFinder):
    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def hides(self, name: str) -> bool:
        return any(name == module or name.startswith(f"{module}.") for module in self.modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if not self.hides(fullname):
            return None
        told = f"{fullname} holds an answer of this lesson: neither a check nor grading lets it be imported"
        raise ImportError(told, name=fullname)
