"""What is said to be supported has been tried: pyproject.toml, the pins and the record agree."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

HOUSE = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
WANTED = tomllib.loads((HOUSE / "tests" / "versions.toml").read_text())
RECORD = json.loads((HOUSE / "tests" / "versions.json").read_text())
GUIDE = (HOUSE / "CONTRIBUTING.md").read_text()
NAMES = list(WANTED["ends"]["lowest"])
MADE_UP = {"no_such_module", "beside_the_notebook"}  # modules that tests have ranks look for


def supported(name: str) -> SpecifierSet:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["lab"], *extras["grade"]]
    (line,) = (line for line in lines if re.match(rf"{name}\b", line))
    return SpecifierSet(line.removeprefix(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_range_ends_where_it_was_tried(name: str) -> None:
    lowest, newest = (WANTED["ends"][end][name] for end in ("lowest", "newest"))
    pinned = re.search(rf"^{name}==(.*)$", (HOUSE / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert all(version in supported(name) for version in (lowest, pinned[1], newest))
    major, minor, _ = map(int, newest.split("."))
    assert f"{major}.{minor + 1}.0" not in supported(name)
    assert f">={lowest.removesuffix('.0')}" in str(supported(name))


def imported(folder: str) -> Iterator[str]:
    """The packages of others that the Python files below a folder import, wherever in them."""
    files = list((HOUSE / folder).rglob("*.py"))
    ours = {"labkit", "autograder", *(path.stem for path in files)}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names


@pytest.mark.days
@pytest.mark.parametrize("folder", ["labkit", "autograder", "cluster", "tests", "benchmarks"])
def test_what_is_imported_is_declared(folder: str) -> None:
    """And not only there because something else needs it."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ]
    declared = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines}
    installed = packages_distributions()
    found = {
        name: {one.lower().replace("_", "-") for one in installed.get(name, [name])}
        for name in imported(folder)
    }
    assert {name for name, distributions in found.items() if not distributions & declared} <= MADE_UP


@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_the_last_try_is_of_these_versions(end: str) -> None:
    """What failed there is said in CONTRIBUTING.md; of what passed only alone, its file."""
    tried = RECORD[end]
    assert {name: tried["packages"][name].partition("+")[0] for name in NAMES} == WANTED["ends"][end]
    assert all(name.split("[")[-1].rstrip("]") in GUIDE for name in tried["failed"])
    assert all(f"`{name.split('::')[0].split('.')[-1]}`" in GUIDE for name in tried["only_alone"])
    assert tried["passed"] > 150
