"""Runs the tests that depend on versions at both ends of the supported range, and writes down how they went.

    make versions                both ends: twenty minutes, and 15 GB below .versions
    make versions ENDS=lowest    one of them

Each end has an environment of its own, with the packages that versions.toml names and otherwise the newest
that pip finds. The result goes into versions.json. Exit status 1 when a test fails.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
HOUSE = HERE.parent
WANTED: Mapping[str, Any] = tomllib.loads((HERE / "versions.toml").read_text())
RECORD = HERE / "versions.json"


def environment(end: str) -> Path:
    """The Python of an environment with the packages of that end."""
    folder = HOUSE / ".versions" / end
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    exact = [f"{name}=={version}" for name, version in WANTED["ends"][end].items()]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *exact, "-e", f"{HOUSE}[lab,grade,test]"], check=True)
    return python


def found_packages(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Name -> version, of what is in the environment."""
    done = subprocess.run(
        [python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    found = {package["name"]: package["version"] for package in json.loads(done.stdout)}
    return {name: found[name] for name in names}


def run_tests(python: Path, results: Path) -> dict[str, Any]:
    """How many passed and were skipped, and the names of those that failed, alone once more as well."""
    own_cache = f"cache_dir={results.with_suffix('.cache')}"
    command = [python, "-m", "pytest", "-q", "-n", "2", "-o", own_cache, *WANTED["tests"]]
    outcome = outcomes([*command, "--dist", "loadscope"], results)
    suspects = [name for name, tags in outcome.items() if tags & {"failure", "error"}]
    if suspects:
        outcome |= outcomes([*command, "-n", "0", "--last-failed"], results)
    failed = sorted(name for name, tags in outcome.items() if tags & {"failure", "error"})
    skipped = sum("skipped" in tags for tags in outcome.values())
    return {
        "passed": len(outcome) - len(failed) - skipped,
        "only_alone": sorted(set(suspects) - set(failed)),
        "skipped": skipped,
        "failed": failed,
    }


def outcomes(command: Sequence[str | Path], results: Path) -> dict[str, set[str]]:
    """Each test that ran -> "failure", "error", "skipped" or nothing."""
    results.unlink(missing_ok=True)
    subprocess.run([*command, f"--junitxml={results}"], cwd=HOUSE, check=False)
    cases = ElementTree.parse(results).getroot().iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": {child.tag for child in case} for case in cases}


def try_end(end: str) -> dict[str, Any]:
    """The record of one end."""
    python = environment(end)
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "python": platform.python_version(),
        "packages": found_packages(python, [*WANTED["ends"][end], "numpy", "ipykernel"]),
        **run_tests(python, HOUSE / ".versions" / f"{end}.xml"),
    }


def main(ends: Sequence[str]) -> int:
    failed = False
    for end in ends or list(WANTED["ends"]):
        tried = try_end(end)
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps({**record, end: tried}, indent=1) + "\n")
        print(f"{end}: {tried}")
        failed = failed or bool(tried["failed"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
