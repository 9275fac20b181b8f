"""The guide in autograder/README.md, from an empty folder to exported grades, its commands as they stand."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import F_ID, LESSON, notebook, solution

from labkit.checks import registry

README = Path(__file__).parents[2] / "autograder" / "README.md"
SOLVED = "Amelie Lovelace_10023_assignsubmission_file_/my lesson.ipynb"  # Moodle's
EMPTY = f"curieanna_LATE_4711_889900_{LESSON}-1.ipynb"  # Canvas's

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]


def commands() -> list[list[str]]:
    """What the guide's first section has in its blocks, without the self-test, which has tests of its own."""
    section = README.read_text(encoding="utf-8").split("\n## ")[1]
    lines = [line for block in section.split("```")[1::2] for line in block.strip().splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words and words[:2] != ["autograder", "selftest"]]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.days(7)
def test_from_an_empty_folder_to_exported_grades(tmp_path: Path) -> None:
    course, said, told = tmp_path / "mycourse", {}, ""
    for words in commands():
        if "zip_collect" in words:
            archive = course / "downloaded" / LESSON / "archive"
            archive.mkdir(parents=True)
            with zipfile.ZipFile(archive / "all.zip", "w") as zipped:
                zipped.writestr(SOLVED, json.dumps(notebook(solution(F_ID))))
                zipped.writestr(EMPTY, json.dumps(notebook("nothing = 1")))
        student = ["10023" if word == "STUDENT" else word for word in words]
        done = run(student, course if words[0] == "nbgrader" else tmp_path)
        said[" ".join(words)] = done.stdout
        told += done.stderr
    assert f"{LESSON}: the reference first: 1 of 5, about " in told
    most = registry.exercise(F_ID).max_points
    assert any(f"10023: {most:g} of" in text for text in said.values()), "the story of one student"
    exported = {row["ID number"]: row[LESSON] for row in csv.DictReader((tmp_path / "grades.csv").open())}
    assert exported == {"10023": f"{most:g}", "4711": "0"}
    canvas = run(
        shlex.split("autograder export 06 --course mycourse --to canvas --canvas-ids"), tmp_path
    ).stdout
    assert {row["ID"] for row in csv.DictReader(canvas.splitlines())} == {"", "10023", "4711"}
