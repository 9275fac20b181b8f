"""What is said to be supported has been tried: pyproject.toml, the pins and the record agree."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

HOUSE = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
WANTED = tomllib.loads((HOUSE / "tests" / "versions.toml").read_text())
RECORD = json.loads((HOUSE / "tests" / "versions.json").read_text())
GUIDE = (HOUSE / "CONTRIBUTING.md").read_text()
NAMES = list(WANTED["ends"]["lowest"])


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


@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_the_last_try_is_of_these_versions(end: str) -> None:
    """What failed there is said in CONTRIBUTING.md."""
    tried = RECORD[end]
    assert {name: tried["packages"][name].partition("+")[0] for name in NAMES} == WANTED["ends"][end]
    assert all(name.split("[")[-1].rstrip("]") in GUIDE for name in tried["failed"])
    assert tried["passed"] > 150
