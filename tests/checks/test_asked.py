"""What a check and a scoreboard say to a call that cannot be meant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit import tracebacks
from labkit.checks import registry
from labkit.checks.handed import about_other_origins
from labkit.checks.practice import check
from labkit.checks.scoreboard import score, scoreboard
from labkit.checks.source.notebook import collect_exercise, live_cells

BANDWIDTH = registry.exercise("00.bus-bandwidth")
OLDER = "def bus_bandwidth(): return 1"
LINES = 7  # a rule, the kind of error and of cell, a line of code or two, an empty one, and what is said


class Written:
    """In place of a student's class."""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((Written,), "id first, in quotes, .* found Written"),
        ((6, Written), "id first, in quotes, .* found 6"),
        (
            ("06.row-parallel-linear",),
            r'expected check\("06.row-parallel-linear", RowParallelLinear\).* nothing',
        ),
        (("06.row-parallel-linear", Written, 3), "found Written, 3 behind the id"),
    ],
)
def test_a_check_says_how_it_is_called(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        check(*given)


def test_a_scoreboard_says_how_it_is_called() -> None:
    with pytest.raises(TypeError, match=r'in quotes, as in scoreboard."06".*found 6'):
        scoreboard(6)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="id in quotes, found 6"):
        score(6, "limits")  # type: ignore[arg-type]


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A notebook's kernel, where errors are shown as `%load_ext labkit` has it."""
    made = InteractiveShell.instance()
    tracebacks.install(made)
    made.run_cell("from labkit import check, score, scoreboard")
    yield made
    InteractiveShell.clear_instance()


def shown(shell: InteractiveShell, capsys: pytest.CaptureFixture[str], *cells: str) -> str:
    """The error that the last of these cells shows."""
    for source in cells:
        capsys.readouterr()
        shell.run_cell(source, store_history=True)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).strip()


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (
            ["def bus_bandwith(a): ...", "check('00.bus-bandwidth', bus_bandwith)"],
            "found bus_bandwith behind the id: give it the name bus_bandwidth in its cell, run that",
        ),
        (["check('00.bus-bandwidth', 5)"], "found 5 behind the id: give it the name bus_bandwidth"),
        (
            ["other, bus_bandwidth = bus_bandwidth, abs", "check('00.bus-bandwidth', other)"],
            "not the one that bus_bandwidth stands for in this notebook: hand over bus_bandwidth",
        ),
        (
            [
                "def mean_loss(): ...\ndef pass_right(): ...\ndef row_and_column_sums(): ...",
                "check('00.find-the-deadlock', mean_loss, pass_right, row_and_column_sums)",
            ],
            "found mean_loss, pass_right, row_and_column_sums behind the id: keep that order",
        ),
    ],
)
def test_a_check_refuses_what_the_name_does_not_stand_for(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cells: list[str], told: str
) -> None:
    """It would check an older definition without a word."""
    text = " ".join(shown(shell, capsys, OLDER, *cells).split())
    assert " TypeError: expected check(" in text
    assert told in text


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("check('00.nope', abs)", "UnknownExercise: no exercise '00.nope'; lesson 00 has 00.ring-all-reduce"),
        ("check('00.bus-bandwidth')", 'TypeError: expected check("00.bus-bandwidth", bus_bandwidth), found'),
        (
            "score('00.bus-bandwidth', 'nope')",
            "KeyError: 00.bus-bandwidth has no property 'nope'; it has ['by",
        ),
        ("score('00.nope', 'nope')", "UnknownExercise: no exercise '00.nope'"),
        ("scoreboard('99')", "UnknownExercise: no lesson '99'; the lessons with exercises are 00, 01"),
    ],
)
def test_a_notebook_shows_what_is_wrong_with_a_call_and_no_other_line(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], call: str, told: str
) -> None:
    text = shown(shell, capsys, call)
    assert f"\n{told}" in text
    assert f"\n----> 1 {call}" in text
    assert len(text.splitlines()) <= LINES


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (
            [OLDER, "exec('def bus_bandwidth(): return 2')"],
            "code of no cell, such as exec .* was cell In \\[1\\]",
        ),
        ([OLDER, f"1 / 0\n{OLDER}"], "made by cell In \\[1\\]. Checked was cell In \\[2\\]"),
        (["class bus_bandwidth:\n    def f(self): ...", f"1 / 0\n{OLDER}"], "made by cell In \\[1\\]"),
        ([OLDER, OLDER], ""),
        ([f"%%time\n{OLDER}"], ""),
        (["bus_bandwidth = lambda: 1"], ""),
        (["from functools import cache\n@cache\n" + OLDER], ""),
        (["def made(f): return lambda: f()", f"@made\n{OLDER}"], ""),
        (["from dataclasses import dataclass\n@dataclass\nclass bus_bandwidth:\n    x: int"], ""),
        (["class bus_bandwidth: ...", "def f(self): ...", "bus_bandwidth.f = f"], ""),
        (["from math import floor as bus_bandwidth"], ""),
    ],
)
def test_what_was_made_by_other_code_than_is_checked_is_told(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cells: list[str], told: str
) -> None:
    shown(shell, capsys, *cells)
    made = shell.user_ns["bus_bandwidth"]
    notes = about_other_origins(BANDWIDTH, [made], collect_exercise(live_cells(made), BANDWIDTH))
    assert len(notes) == bool(told)
    assert re.search(told, "".join(notes))


def test_a_check_tells_it(shell: InteractiveShell) -> None:
    for source in (OLDER, "exec('def bus_bandwidth(): return 2')"):
        shell.run_cell(source, store_history=True)
    report = check("00.bus-bandwidth", shell.user_ns["bus_bandwidth"])
    assert "made by code of no cell" in report.notes[0]


AGENT_GONE = f"""
import os, signal
def bus_bandwidth(**given): os.kill(os.getppid(), signal.SIGKILL)
check('{BANDWIDTH.id}', bus_bandwidth)
"""


def test_a_machine_that_fails_is_told_without_frames(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(shell, capsys, AGENT_GONE)
    assert "\nCouldNotBeGraded: the job's agent ended without a report (signal 9)" in text
    assert len(text.splitlines()) <= LINES + 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    text = shown(shell, capsys, OLDER, "check('00.bus-bandwidth', bus_bandwidth)")
    assert "\nCouldNotBeGraded: OMP_NUM_THREADS must be a number of threads, found 'many'" in text
    assert len(text.splitlines()) <= LINES


SMALL_DISK = f"""
import os, tempfile
from labkit.checks import registry
from labkit.checks.jobs import CouldNotBeGraded
from labkit.checks.practice import check_cells
from labkit.checks.source.submission import Cell
assert tempfile.gettempdir() == "/mnt"  # which it would not choose once it is full
with open("/mnt/fill", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
for left in (0, 4096, 32768):
    os.truncate("/mnt/fill", os.path.getsize("/mnt/fill") - left)
    try:
        print(check_cells(registry.exercise("{BANDWIDTH.id}"), [Cell("cell 1", "{OLDER}")]))
    except CouldNotBeGraded as error:
        print(*str(error).split())
"""


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap makes the small disk")
def test_a_full_disk_is_said_to_be_full() -> None:
    small = ["bwrap", "--dev-bind", "/", "/", "--size", str(4 << 20), "--tmpfs", "/mnt"]
    run = [*small, "--setenv", "TMPDIR", "/mnt", sys.executable, "-c", SMALL_DISK]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(
        "there is no room for the check's files in /mnt: free some space there, or set"
    )
    assert all("/mnt" in line and "free some space" in line for line in lines)
