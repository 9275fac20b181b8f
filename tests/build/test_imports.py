"""Which module imports which, read from the source: imports inside functions and for types count too."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
# Each may import those before it: nobody imports the attacks, or what is beside the lessons, by name.
GRADER = ("sandbox", "grade", "gradebook", "batch", "selftest", "gpu", "site", "attacks", "lessons")
LAUNCH = ("handover", "failure", "engine", "nodes")  # the same; the front, which is no folder, imports all
AGAINST_THE_DIRECTION = {
    # Lesson 09's check hands out the library's parts, so `checks` uses `parallel`. This module alone goes the
    # other way: it takes somebody's own parts out of their notebooks, by the rules that checks collect by.
    "labkit.parallel.own": ("labkit.checks.source.notebook", "labkit.checks.source.submission"),
}
PRIVATE = (  # modules that use what a library keeps to itself
    *("labkit.torch_private", "labkit.torch_private_distributed"),
    *("labkit.torch_private_elastic", "labkit.torch_private_gpu"),
    "autograder.gradebook.nbgrader_private",
    *("labkit.magics", "labkit.launch.names"),  # IPython's
    "labkit.record.threads",  # what starts a thread of Python's
)
NOT_PRIVATE = (  # in spite of the underscore
    *("_exit", "_getframe", "_debugmallocstats", "_asdict", "_fields", "_replace"),  # Python's, documented
    "_reconstructor",  # in pickles
    *("_repr_html_", "_render_traceback_"),  # what Jupyter asks of an object, and of an exception
    *("_schema", "_cdata"),  # of an operator and a storage, read where torch hands these over
)


@cache
def modules(package: str) -> dict[str, Path]:
    """Name -> file, for all modules of a package."""
    found = {}
    for path in (HOUSE / package.replace(".", "/")).rglob("*.py"):
        parts = path.relative_to(HOUSE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def all_modules() -> dict[str, Path]:
    return {**modules("labkit"), **modules("autograder")}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Each name that a file imports, wherever in the file."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(known: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> the modules of `known` that it imports.

    An import of a name that is a module of a package counts as one of that module, not of the package.
    """
    found = {}
    for module, path in known.items():
        names = {name for name in imported(path) if name in known and name != module}
        packages = {name.rpartition(".")[0] for name in names}
        found[module] = {name for name in names if name not in packages}
    return found


def fail_in_a_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_module_imports_itself_by_way_of_others() -> None:
    fail_in_a_circle(arrows(all_modules()))


def room(module: str) -> str:
    """The folder of labkit or autograder that a module is in; of a module in none, itself."""
    return ".".join(module.split(".")[:2])


def test_no_room_imports_itself_by_way_of_others() -> None:
    """Not even by way of different modules, but for those that say why."""
    rooms = defaultdict(set)
    for module, names in arrows(all_modules()).items():
        for name in names - set(AGAINST_THE_DIRECTION.get(module, ())):
            if room(name) != room(module):
                rooms[room(module)].add(room(name))
    fail_in_a_circle(rooms)


def test_what_goes_against_the_direction_is_there() -> None:
    graph = arrows(all_modules())
    for module, names in AGAINST_THE_DIRECTION.items():
        assert graph[module] >= set(names), f"{module} needs no exception any more"


def test_labkit_does_not_know_the_grader() -> None:
    knowing = [
        module
        for module, path in modules("labkit").items()
        if any(name.split(".")[0] == "autograder" for name in imported(path))
    ]
    assert knowing == []


def test_the_rooms_of_the_grader_stand_one_above_the_other() -> None:
    """nbgrader's steps in the gradebook call for a grade, so grading knows no gradebook; a run over a class
    drives both.
    """
    assert {path.parent.name for path in (HOUSE / "autograder").glob("*/__init__.py")} == set(GRADER)
    for below, name in enumerate(GRADER):
        above = tuple(f"autograder.{one}." for one in GRADER[below + 1 :])
        for module, path in modules(f"autograder.{name}").items():
            assert [one for one in imported(path) if f"{one}.".startswith(above)] == [], module


def test_the_rooms_of_launch_stand_one_above_the_other() -> None:
    for number, room in enumerate(LAUNCH):
        below = tuple(f"labkit.launch.{name}" for name in LAUNCH[: number + 1])
        for module, path in modules(f"labkit.launch.{room}").items():
            of_launch = [name for name in imported(path) if name.startswith("labkit.launch.")]
            assert [name for name in of_launch if not name.startswith(below)] == [], module


@cache
def own_names(folder: Path) -> set[str]:
    """What the modules of one folder define: functions, classes, attributes, fields."""
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_PRIVATE


def private_names_of_others(path: Path) -> Iterator[str]:
    """What a file uses of what others keep to themselves: a part of the name begins with an underscore."""
    others = [name for name in imported(path) if name.split(".")[0] not in ("labkit", "autograder")]
    yield from (name for name in others if any(private(part) for part in name.split(".")))
    roots = {part for name in others for part in (name.split(".")[0], name.split(".")[-1])}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and private(node.attr):
            written = ast.unparse(node)
            if written.split(".")[0] in roots or node.attr not in own_names(path.parent):
                yield written
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and private(name.value):
                yield name.value


def test_what_others_keep_to_themselves_is_used_in_these_files_alone() -> None:
    """The right answers beside the lessons are as students write them, and may."""
    using = {module: sorted(private_names_of_others(path)) for module, path in all_modules().items()}
    found = {m: names for m, names in using.items() if names and not m.startswith("autograder.lessons.")}
    assert found.keys() == set(PRIVATE), {m: found[m] for m in found.keys() - set(PRIVATE)}
    told = (HOUSE / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [module for module in PRIVATE if f"`{module.replace('.', '/')}.py`" not in told] == []


def test_what_nbgrader_keeps_to_itself_is_written_anew_in_one_file() -> None:
    """A method of ours under the name of a private one of a class that it is made from."""
    found = defaultdict(list)
    for module in modules("autograder.gradebook"):
        for kind in vars(importlib.import_module(module)).values():
            if inspect.isclass(kind) and kind.__module__ == module:
                bases = [one for one in kind.__mro__ if one.__module__.startswith(("nbgrader", "nbconvert"))]
                theirs = {name for one in bases for name in vars(one)}
                ours = {name for name, value in vars(kind).items() if inspect.isfunction(value)}
                found[module] += [name for name in ours & theirs if private(name)]
    assert [m for m, names in found.items() if names] == ["autograder.gradebook.nbgrader_private"], found
