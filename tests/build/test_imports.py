"""Which module imports which, read from the source: imports inside functions and for types count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
ROOMS = (
    "labkit.devices",
    "labkit.launch",
    "labkit.record",
    "labkit.show",
    "labkit.jupyter",
    "labkit.slurm",
    "labkit.theory",
    "labkit.prove",
    "labkit.build",
    "autograder",
)
GRADER = ("sandbox", "grade", "gradebook", "batch", "selftest")  # each may import those before it
LAUNCH = ("handover", "failure", "engine", "nodes")  # the same; the front, which is no folder, imports all


def modules(package: str) -> dict[str, Path]:
    """Name -> file, for all modules of a package."""
    found = {}
    for path in (HOUSE / package.replace(".", "/")).rglob("*.py"):
        parts = path.relative_to(HOUSE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Each name that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("room", ROOMS)
def test_imports_of_a_room_have_one_direction(room: str) -> None:
    try:
        TopologicalSorter(arrows(modules(room))).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_labkit_does_not_know_the_grader() -> None:
    knowing = [
        module
        for module, path in modules("labkit").items()
        if any(name.split(".")[0] == "autograder" for name in imported(path))
    ]
    assert knowing == []


def test_no_circle_goes_through_the_rooms_that_others_use() -> None:
    """A room's modules may only be in a circle through other rooms; here is none of those either."""
    known = modules("labkit")
    graph = arrows(known)
    for start in known:
        if start.startswith(ROOMS):
            reached, left = set(), list(graph[start])
            while left:
                module = left.pop()
                if module not in reached:
                    reached.add(module)
                    left.extend(graph[module])
            assert start not in reached, f"{start} imports itself by way of others"


def test_the_rooms_of_the_grader_stand_one_above_the_other() -> None:
    """nbgrader's steps in the gradebook call for a grade, so grading knows no gradebook; a run over a class
    drives both.
    """
    for below, room in enumerate(GRADER):
        above = tuple(f"autograder.{name}" for name in GRADER[below + 1 :])
        for module, path in modules(f"autograder.{room}").items():
            assert not [name for name in imported(path) if name.startswith(tuple(f"{a}." for a in above))], (
                module
            )


def test_the_rooms_of_launch_stand_one_above_the_other() -> None:
    for number, room in enumerate(LAUNCH):
        below = tuple(f"labkit.launch.{name}" for name in LAUNCH[: number + 1])
        for module, path in modules(f"labkit.launch.{room}").items():
            of_launch = [name for name in imported(path) if name.startswith("labkit.launch.")]
            assert [name for name in of_launch if not name.startswith(below)] == [], module


def private_names_of_torch(path: Path) -> Iterator[str]:
    """What a file takes from inside torch: a part of the name begins with an underscore."""
    for name in imported(path):
        if name.startswith("torch") and any(part.startswith("_") for part in name.split(".")):
            yield name
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            written = ast.unparse(node)
            if written.split(".")[0] in ("torch", "dist", "c10d"):
                yield written


def test_what_torch_keeps_to_itself_is_used_in_one_file_and_for_gpus_in_another() -> None:
    using = [module for module, path in modules("labkit").items() if [*private_names_of_torch(path)]]
    assert sorted(using) == ["labkit.torch_private", "labkit.torch_private_gpu"]
