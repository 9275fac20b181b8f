"""The gradebook in PostgreSQL: a real server on a socket of its own, for the length of the test."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import F_ID, LESSON, hand_in, notebook, solution
from nbgrader.api import Gradebook

from autograder.batch.submissions import grade_lesson
from autograder.grade.grading import Conditions
from autograder.gradebook.course import CONFIG_FILE, Course, init_course
from autograder.gradebook.problems import CourseError
from autograder.sandbox.choice import find_sandbox
from labkit.checks import registry

PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
USER = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL (apt-get install postgresql)"),
    pytest.mark.skipif(find_spec("psycopg") is None, reason="no psycopg (pip install psycopg[binary])"),
]


def run(program: str, *arguments: str) -> None:
    command = [f"{PROGRAMS[-1]}/{program}", *arguments]
    done = subprocess.run(command, user=USER, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def db_url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a socket's path must be short
    if USER:
        shutil.chown(folder, USER)
    data, options = str(folder / "data"), f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        run("initdb", "-D", data, "-U", "teacher", "--auth=trust", "--no-sync")
        run("pg_ctl", "-D", data, "-l", str(folder / "log"), "-o", options, "-w", "start")
        run("createdb", "-h", str(folder), "-U", "teacher", "grades")
        yield f"postgresql://teacher@/grades?host={folder}"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)


@pytest.mark.days(4)
def test_grades_go_to_the_database_that_the_course_names(tmp_path: Path, db_url: str) -> None:
    init_course(tmp_path)
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write(f"\nc.CourseDirectory.db_url = {db_url!r}\n")
    with pytest.raises(CourseError, match="needs a course id"):
        Course(tmp_path)
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write('c.CourseDirectory.course_id = "tml"\n')
    hand_in(tmp_path, "amelie", notebook(solution(F_ID)))
    hand_in(tmp_path, "bea", notebook("nothing = 1"))
    course, conditions = Course(tmp_path), Conditions(LESSON, 2, find_sandbox())
    course.add_lesson(LESSON)
    run = grade_lesson(course, conditions, jobs=2)
    assert (sorted(run.graded), run.failed) == (["amelie", "bea"], {})
    with Gradebook(db_url) as gradebook:
        scores = {s.student.id: s.score for s in gradebook.assignment_submissions(LESSON)}
    assert scores == {"amelie": registry.exercise(F_ID).max_points, "bea": 0}
    assert {s.student: s.score for s in course.scores(LESSON)} == scores
    assert not (tmp_path / "gradebook.db").exists()
