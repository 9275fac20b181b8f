"""The command line of every benchmark: --help measures nothing, and what is misspelt is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_"))
AFTER_IMPORTS = """
import runpy, sys
for option in ("--help", "--jsn"):
    sys.argv = [PROGRAM, option]
    try:
        runpy.run_path(PROGRAM, run_name="__main__")
    except SystemExit as ended:
        print("ended with", ended.code)
"""


def test_there_are_benchmarks() -> None:
    assert {"launch", "long_context", "experts", "planner"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_told_and_a_misspelt_option_refused(name: str) -> None:
    program = BENCHMARKS / f"{name}.py"
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); PROGRAM = {str(program)!r}\n{AFTER_IMPORTS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    told = program.read_text().split('"""')[1]
    assert done.stdout.splitlines()[-1] == "ended with 2", done.stderr
    assert "ended with 0\n" in done.stdout
    assert told.strip() in done.stdout
    assert "--json" in done.stdout
    assert "unrecognized arguments: --jsn" in done.stderr
