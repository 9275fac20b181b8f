"""A grading run that is killed at any instant goes on where it was: nothing lost, nothing graded twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import F_ID, LESSON, SEED, MakeCourse, hand_in, notebook, solution
from nbgrader.api import Gradebook

from autograder.grade.records import FOLDER, load_all
from labkit.checks import registry

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(500)]

STUDENTS = 4
KILLS = 4


def start(course: Path, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autograder", "grade", "06", "--course", str(course)]
    with (course / "grading.txt").open("wb") as says:
        return subprocess.Popen(
            [*command, "--seed", str(SEED), "--jobs", "2"],
            stdout=says,
            stderr=says,
            env={**os.environ, **environment},
        )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.days(6)
def test_an_end_in_between_leaves_nothing(
    tmp_path: Path, make_course: MakeCourse, ending: signal.Signals
) -> None:
    course, scratch = tmp_path / "course", tmp_path / "scratch"
    course.mkdir()
    scratch.mkdir()
    make_course(course)
    hand_in(course, "ada", notebook(solution(F_ID)))
    grading = start(course, TMPDIR=str(scratch))
    deadline = time.monotonic() + 60
    while not list(scratch.glob("labkit-grading-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(scratch.glob("labkit-grading-*")), (course / "grading.txt").read_text()
    inside = psutil.Process(grading.pid).children(recursive=True)
    grading.send_signal(ending)
    assert grading.wait(30) != 0
    assert not psutil.wait_procs(inside, timeout=10)[1]
    assert not list(scratch.iterdir())
    said = (course / "grading.txt").read_text()
    assert "what is graded is kept, and the same command goes on from there" in said
    assert "Aborted" in said
    assert "Traceback" not in said


@pytest.mark.days(9)
def test_an_interrupt_tells_who_is_graded_to_the_end(tmp_path: Path, make_course: MakeCourse) -> None:
    course, scratch = tmp_path / "course", tmp_path / "scratch"
    course.mkdir()
    scratch.mkdir()
    make_course(course)
    hand_in(course, "ada", notebook(solution(F_ID)))
    assert start(course).wait(120) == 0, (course / "grading.txt").read_text()
    hand_in(course, "eve", notebook(solution(F_ID), "# eve"))
    grading = start(course, TMPDIR=str(scratch))  # the reference is known by now: the first is a student's
    deadline = time.monotonic() + 60
    while not list(scratch.glob("labkit-grading-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    grading.send_signal(signal.SIGINT)
    assert grading.wait(60) != 0
    assert "eve: graded to the end first" in (course / "grading.txt").read_text()
    assert {record.student for record in load_all(course, LESSON)} == {"ada", "eve"}
    assert not list(scratch.iterdir())


@pytest.mark.days(10)
def test_killed_at_random_times(tmp_path: Path, make_course: MakeCourse) -> None:
    make_course(
        tmp_path
    )  # with the reference graded: else most kills would meet that, and no student's grading
    for number in range(STUDENTS):
        hand_in(tmp_path, f"student{number}", notebook(solution(F_ID), f"# {number}"))
    draw, done_before, ran = random.Random(7), dict[str, str](), list[bool]()
    for _ in range(KILLS):
        grading = start(tmp_path)
        time.sleep(draw.uniform(2, 7))
        ran.append(grading.poll() is None)
        inside = psutil.Process(grading.pid).children(recursive=True) if ran[-1] else []
        grading.send_signal(signal.SIGKILL)
        grading.wait(20)
        psutil.wait_procs(inside, timeout=10)
        assert not [p for p in inside if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        done_now = {r.student: r.graded_at for r in load_all(tmp_path, LESSON)}
        assert {s: done_now[s] for s in done_before} == done_before, "what was graded is not graded again"
        done_before = done_now
    assert any(ran), "no kill met a grading that ran"
    assert start(tmp_path).wait(300) == 0, (tmp_path / "grading.txt").read_text()
    most = registry.exercise(F_ID).max_points
    assert {r.student: r.points for r in load_all(tmp_path, LESSON)} == {
        f"student{n}": most for n in range(STUDENTS)
    }
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        scores = [gradebook.find_submission(LESSON, f"student{n}").score for n in range(STUDENTS)]
    assert scores == [most] * STUDENTS
    assert len(list((tmp_path / "feedback").rglob("*.html"))) == STUDENTS
    assert not list((tmp_path / FOLDER).rglob("*.part"))
