"""The tests that are marked gpu, by pytest in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from autograder.grade.reference import REPOSITORY
from labkit.prove.result import Results, State

_COMMAND = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider")


def main(results: Results) -> None:
    """A row a test; one that is skipped says why."""
    with tempfile.TemporaryDirectory(prefix="labkit-gpu-") as folder:
        path = Path(folder, "report.xml")
        done = subprocess.run([sys.executable, *_COMMAND, f"--junitxml={path}", *marked()], cwd=REPOSITORY)
        told = list(_told(path)) if path.exists() else []
    for name, state, says in told:
        results.add(name, state, says)
    results.check(
        "collected",
        bool(told) and done.returncode in (0, 1),
        f"{len(told)} tests, pytest ended with {done.returncode}",
    )


def marked() -> list[str]:
    """The files with tests that are marked gpu: the others may need packages that this node lacks."""
    files = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [str(file.relative_to(REPOSITORY)) for file in files if "mark.gpu" in file.read_text()]


def _told(path: Path) -> Iterator[tuple[str, State, str]]:
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        for kind, state in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (found := case.find(kind)) is not None:
                yield name, state, (found.get("message") or "")[:300]  # type: ignore[misc]
                break
        else:
            yield name, "passed", f"{float(case.get('time', 0)):.1f} s"
