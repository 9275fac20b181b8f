"""What neither a check nor grading lets be imported: modules of labkit that hold an exercise's answer, and
files that stand beside a notebook.

The grader's sandbox does not even have their files. A check takes them out of this process for a while, so
that what passes it is not lost in grading for an import.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType

from labkit.checks import registry
from labkit.checks.exercise import Exercise


def hidden_modules(lesson: str) -> tuple[str, ...]:
    """What no exercise of a lesson may import ("labkit.theory.memory"): one sandbox serves them all."""
    return _modules(registry.exercises(lesson))


def _modules(exercises: Iterable[Exercise]) -> tuple[str, ...]:
    files = sorted({file for exercise in exercises for file in exercise.hides})
    return tuple(f"labkit.{file.removesuffix('.py').replace('/', '.')}" for file in files)


def rules(exercise: Exercise, lesson: Iterable[Exercise]) -> str:
    """What a student may not use here, in one sentence; empty where everything may be used.

    lesson: all exercises of the lesson, as one sandbox serves them all.
    """
    modules = _modules(lesson)
    calls = [name for name in exercise.forbids if not name.startswith(tuple(f"{m}." for m in modules))]
    told = [f"{', '.join(modules)} cannot be imported"] if modules else []
    told += [f"these may not be called: {', '.join(calls)}"] if calls else []
    return f"Here, and when it is graded, {'; '.join(told)}." if told else ""


@contextlib.contextmanager
def hiding(modules: Sequence[str]) -> Iterator[None]:
    """Importing one of these modules, or one below it, inside the block is an ImportError that says why.

    So is importing a file that stands beside the notebook, which is not handed in with it, and a module of
    labkit that takes names from a hidden one, as it is where that one's file is empty: those that are loaded
    are loaded anew inside.
    """
    finder = _Refusal(modules)
    taken = {name: module for name, module in sys.modules.items() if finder.hides(name)}
    taken |= _takers(taken)
    attributes: list[tuple[ModuleType, str, object]] = [
        place for name, module in taken.items() if (place := _attribute_of(name, module))
    ]
    attributes += list(_handed_on(taken))
    for name in taken:
        del sys.modules[name]
    for parent, attribute, _ in attributes:
        delattr(parent, attribute)
    beside = _Beside()
    sys.meta_path[:0] = [finder, beside]
    try:
        yield
    finally:
        for each in (finder, beside):
            sys.meta_path.remove(each)
        sys.modules.update(taken)
        for parent, attribute, module in attributes:
            setattr(parent, attribute, module)


def _attribute_of(name: str, module: ModuleType) -> tuple[ModuleType, str, ModuleType] | None:
    """Where a loaded module stands in its package."""
    package, _, last = name.rpartition(".")
    parent = sys.modules.get(package)
    return (parent, last, module) if parent is not None and vars(parent).get(last) is module else None


def _takers(taken: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """The loaded modules of labkit, other than its checks, that hold something of these modules', and those
    that hold something of theirs.
    """
    found: dict[str, ModuleType] = {}
    candidates = dict(_of_labkit())
    while more := {n: m for n, m in candidates.items() if _has_some_of(m, {*taken, *found})}:
        found |= more
        candidates = {name: module for name, module in candidates.items() if name not in more}
    return found


def _of_labkit() -> Iterator[tuple[str, ModuleType]]:
    """What a student may import: neither packages, of which only single names are taken, nor the checks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("labkit.") and not name.startswith("labkit.checks."):
            yield from [] if hasattr(module, "__path__") else [(name, module)]


def _has_some_of(module: ModuleType, names: Collection[str]) -> bool:
    return module.__name__ not in names and any(_comes_from(v, names) for v in vars(module).values())


def _handed_on(taken: Mapping[str, ModuleType]) -> Iterator[tuple[ModuleType, str, object]]:
    """Names of these modules' that a package of labkit keeps: package, name, value."""
    for name, package in list(sys.modules.items()):
        if name.partition(".")[0] == "labkit" and hasattr(package, "__path__"):
            kept = [item for item in vars(package).items() if _comes_from(item[1], taken)]
            yield from ((package, attribute, value) for attribute, value in kept)


def _comes_from(value: object, modules: Collection[str]) -> bool:
    """Whether this is a function or class that one of these modules defines."""
    return isinstance(value, FunctionType | type) and value.__module__ in modules


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


class _Beside(MetaPathFinder):
    """Refuses a student's own files, where this process works."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if path is not None or fullname == "labkit":
            return None
        spec = PathFinder.find_spec(fullname)
        if spec is None or not spec.origin or not _is_beside(Path(spec.origin)):
            return None
        told = f"{fullname} is a file beside the notebook: only the notebook is handed in, write it in a cell"
        raise ImportError(told, name=fullname)


def _is_beside(file: Path) -> bool:
    """Whether a file stands in the working folder, other than in an environment."""
    environments = (sys.prefix, sys.base_prefix)
    installed = any(map(file.is_relative_to, environments)) or {"site-packages", "dist-packages"} & {
        *file.parts
    }
    return file.is_absolute() and file.is_relative_to(Path.cwd()) and not installed
