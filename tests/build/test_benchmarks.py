"""The command line of every benchmark: --help measures nothing, and what is misspelt is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.days()

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
RACE = """
import os, sys, time
import psutil
from _race import race, serve

def quick():
    yield lambda: None

def hangs():
    rounds = iter((0, 0, 1000))  # the first while it warms up
    yield lambda: time.sleep(next(rounds))

def ends():
    rounds = iter((False, False, True))
    yield lambda: os._exit(1) if next(rounds) else None

def never_ready():
    time.sleep(1000)
    yield

CONTENDERS = {start.__name__: start for start in (quick, hangs, ends, never_ready)}
if "--contender" in sys.argv:
    serve(CONTENDERS[sys.argv[-1]])
else:
    for name, contender in race([*CONTENDERS], 4, longest=10).items():
        print(name, len(contender.times), contender.missing)
    try:
        race(["quick"], "four")
    except TypeError:
        print("left:", psutil.Process().children())
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


@pytest.mark.timeout(100)
def test_a_contender_that_hangs_or_ends_is_missing_and_none_runs_on(tmp_path: Path) -> None:
    program = tmp_path / "race.py"
    program.write_text(RACE)
    where = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=90, env=where
    )
    assert done.stdout.splitlines() == [
        "quick 4 ",
        "hangs 1 no answer within 10 s",
        "ends 1 failed: ?",
        "never_ready 0 no answer within 10 s",
        "left: []",
    ], done.stderr
