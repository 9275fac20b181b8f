"""Grading over a job array of a real local Slurm: the same records, the same gradebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import F_ID, LESSON, MakeCourse, hand_in, notebook, solution
from nbgrader.api import Gradebook
from slurm_cluster import LocalSlurm

from autograder.batch.slurm import SHARE
from autograder.grade.records import load_all
from autograder.gradebook.course import init_course
from labkit.checks import registry

pytestmark = [pytest.mark.sandbox, pytest.mark.slurm, pytest.mark.timeout(400)]


def test_an_array_gives_the_same_grades(slurm: LocalSlurm, tmp_path: Path, make_course: MakeCourse) -> None:
    make_course(tmp_path)
    for number in range(2 * SHARE):
        answer = solution(F_ID) if number % 2 else "x = 1"
        hand_in(tmp_path, f"student{number}", notebook(answer, f"# {number}"))
    command = [sys.executable, "-m", "autograder", "grade", "06", "--course", str(tmp_path), "--jobs", "1"]
    done = subprocess.run(
        [*command, "--executor", "slurm", "--no-feedback"],
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=350,
    )
    logs = [path.read_text() for path in (tmp_path / "records" / LESSON / "slurm").glob("*.log")]
    assert done.returncode == 0, (done.stderr, logs)
    assert len(logs) == 2, "two tasks"
    assert all("student" in log for log in logs)
    most = registry.exercise(F_ID).max_points
    expected = {f"student{n}": most * (n % 2) for n in range(2 * SHARE)}
    assert {r.student: r.points for r in load_all(tmp_path, LESSON)} == expected
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        assert {s: gradebook.find_submission(LESSON, s).score for s in expected} == expected


def test_without_slurm_it_says_so(tmp_path: Path) -> None:
    from autograder.batch.slurm import SlurmFailed, grade_on_slurm
    from autograder.grade.grading import Conditions
    from autograder.gradebook.course import Course
    from autograder.sandbox.unconfined import Unconfined

    init_course(tmp_path)
    path = os.environ["PATH"]
    course = Course(tmp_path)
    os.environ["PATH"] = "/nowhere"
    try:
        with pytest.raises(SlurmFailed, match="no sbatch"):
            grade_on_slurm(course, Conditions(LESSON, 1, Unconfined()), 1, False)
    finally:
        os.environ["PATH"] = path
