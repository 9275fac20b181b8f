"""What the grader may not read of one student's costs nobody else their result."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from conftest import notebook, solution
from recorded import LESSON, MOST, RING, new_course, record

from autograder.grade.deciding import checks_digest
from autograder.grade.evidence import Baseline
from autograder.grade.records import FOLDER
from autograder.grade.reference import REPOSITORY

pytestmark = pytest.mark.days()

# Student -> what of theirs is closed, below submitted/, and how it is told.
CLOSED = {
    "folder": ("folder", "its folder cannot be looked into (Permission denied): let who grades read it"),
    "listed": ("listed", "its folder cannot be looked into (Permission denied)"),
    "lesson": (f"lesson/{LESSON}", "its folder cannot be looked into (Permission denied)"),
    "names": (f"names/{LESSON}", "its folder cannot be looked into (Permission denied)"),
    "notebook": (f"notebook/{LESSON}/{LESSON}.ipynb", "Permission denied"),
    "asks": (f"asks/{LESSON}/regrade.txt", "Permission denied"),
    "late": (f"late/{LESSON}/timestamp.txt", "Permission denied"),
}
MODES = {"listed": 0o400, "names": 0o400}
COMMANDS = {
    "grade": ["grade", "00", "--unsafe-no-sandbox", "--no-feedback"],
    "report": ["report", "00", "--csv", "table.csv"],
    "explain": ["report", "00", "--explain", "lesson"],
    "similar": ["report", "00", "--similar"],
    "export": ["export", "00", "--to", "moodle"],
    "regrade": ["regrade", "00", "--unsafe-no-sandbox"]
    + [word for student in CLOSED if student not in ("asks", "late") for word in ("--student", student)],
}
RUN = """
import json, sys
from click.testing import CliRunner
from autograder.cli import main
found = {}
for name, words in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(main, words)
    found[name] = [done.exit_code, done.stdout, done.stderr, repr(done.exception)]
print(json.dumps(found))
"""


def without_root(command: list[str]) -> list[str]:
    """The command as a user has it for whom files can be closed: root's are not closed to root."""
    if os.geteuid() != 0:
        return command
    if not shutil.which("setpriv"):
        pytest.skip("no setpriv (apt-get install util-linux)")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner", *command]


def test_what_is_closed_is_that_students_problem_alone(tmp_path: Path) -> None:
    course = new_course(tmp_path)
    for student in ("ada", *CLOSED):
        record(course, student, notebook(solution(RING), f"# {student}"), merge=False)
        (tmp_path / "submitted" / student / LESSON / "regrade.txt").write_text("Please look again.")
        (tmp_path / "submitted" / student / LESSON / "timestamp.txt").write_text("2026-12-01 23:59:00 UTC")
    baseline = tmp_path / FOLDER / LESSON / f".reference-3-{checks_digest(LESSON)}-none.json"
    baseline.write_bytes(msgspec.json.encode(Baseline.of([])))
    paths = {student: tmp_path / "submitted" / path for student, (path, _) in CLOSED.items()}
    modes = {path: path.stat().st_mode for path in paths.values()}
    try:
        for student, path in paths.items():
            path.chmod(MODES.get(student, 0))
        command = without_root([sys.executable, "-c", RUN, json.dumps(COMMANDS)])
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, (_, _, stderr, exception) in found.items():
        assert exception == "None" or exception.startswith("SystemExit"), f"{name}: {exception}"
        assert "Traceback" not in stderr, f"{name}: {stderr}"

    status, stdout, stderr, _ = found["grade"]
    assert status == 1
    assert f"kept 1 graded before, {len(CLOSED)} with a problem" in stdout
    lines = {line.split(":")[0].strip(): line for line in stderr.splitlines() if line.startswith("  ")}
    for student, (_, says) in CLOSED.items():
        assert says in lines[student]
    assert "ada" not in lines
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / FOLDER / LESSON / "grades.csv").open())}
    assert set(rows) == {"ada", *CLOSED}
    assert (rows["ada"]["score"], rows["ada"]["in_doubt"]) == (f"{MOST:g}", "")
    assert "cannot be looked into (Permission denied)" in rows["lesson"]["in_doubt"]

    for name in ("report", "explain", "similar", "export"):
        assert found[name][0] == 0, f"{name}: {found[name]}"
    assert f"asks, {LESSON}: regrade.txt cannot be read: Permission denied" in found["report"][1]
    assert f"ada, {LESSON}: Please look again." in found["report"][1]
    assert (tmp_path / "table.csv").read_text() == (tmp_path / FOLDER / LESSON / "grades.csv").read_text()
    assert "cannot be looked into (Permission denied)" in found["explain"][1]
    assert f'"ada","","{MOST:g}"' in found["export"][1]
    status, stdout, stderr, _ = found["regrade"]
    assert status == 1
    assert f"graded 0, kept 0 graded before, {len(CLOSED) - 2} with a problem" in stdout
    for student in ("folder", "lesson", "notebook"):
        assert f"  {student}: " in stderr
