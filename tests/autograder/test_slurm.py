"""Grading over a job array of a real local Slurm: the same records, the same gradebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import F_ID, LESSON, MakeCourse, hand_in, notebook, solution
from nbgrader.api import Gradebook
from slurm_cluster import LocalSlurm

from autograder.batch import slurm as batch
from autograder.batch.slurm import SHARE
from autograder.grade.grading import Conditions
from autograder.grade.records import load_all, path_of
from autograder.gradebook.course import Course, init_course
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry
from labkit.slurm.commands import SlurmError

pytestmark = [pytest.mark.sandbox, pytest.mark.slurm, pytest.mark.timeout(400)]


def grade(slurm: LocalSlurm, course: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(course), *options], env=slurm.environment, capture_output=True, text=True, timeout=350
    )


def command(course: Path) -> list[str]:
    grading = [sys.executable, "-m", "autograder", "grade", "06", "--course", str(course), "--jobs", "1"]
    return [*grading, "--executor", "slurm", "--no-feedback"]


def written(course: Path) -> dict[str, int]:
    """When each student's record was written."""
    return {
        r.student: path_of(course, LESSON, r.student).stat().st_mtime_ns for r in load_all(course, LESSON)
    }


@pytest.mark.days(1)
def test_an_array_gives_the_same_grades(slurm: LocalSlurm, tmp_path: Path, make_course: MakeCourse) -> None:
    make_course(tmp_path)
    for number in range(2 * SHARE):
        answer = solution(F_ID) if number % 2 else "x = 1"
        hand_in(tmp_path, f"student{number}", notebook(answer, f"# {number}"))
    done = grade(slurm, tmp_path)
    logs = [path.read_text() for path in (tmp_path / "records" / LESSON / "slurm").glob("*.log")]
    assert done.returncode == 0, (done.stderr, logs)
    assert len(logs) == 2, "two tasks"
    assert all("student" in log for log in logs)
    most = registry.exercise(F_ID).max_points
    expected = {f"student{n}": most * (n % 2) for n in range(2 * SHARE)}
    assert {r.student: r.points for r in load_all(tmp_path, LESSON)} == expected
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        assert {s: gradebook.find_submission(LESSON, s).score for s in expected} == expected


@pytest.mark.days(5)
def test_one_student_again_is_that_student_alone(
    slurm: LocalSlurm, tmp_path: Path, make_course: MakeCourse
) -> None:
    make_course(tmp_path)
    for student in ("ada", "bob"):
        hand_in(tmp_path, student, notebook(solution(F_ID), f"# {student}"))
    assert grade(slurm, tmp_path).returncode == 0
    before = written(tmp_path)
    done = grade(slurm, tmp_path, "--student", "ada", "--force")
    after = written(tmp_path)
    assert done.returncode == 0, done.stderr
    assert after["ada"] > before["ada"]
    assert after["bob"] == before["bob"]


@pytest.mark.days(5)
def test_who_cannot_be_graded_keeps_nobody_out_of_the_gradebook(
    slurm: LocalSlurm, tmp_path: Path, make_course: MakeCourse
) -> None:
    make_course(tmp_path)
    hand_in(tmp_path, "ada", notebook(solution(F_ID)))
    hand_in(tmp_path, "bob", notebook(solution(F_ID)))
    path_of(tmp_path, LESSON, "bob").mkdir(parents=True)  # where the job would write what came of it
    done = grade(slurm, tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "bob: the job array did not grade it in full; see" in done.stderr
    assert "graded 0, kept 1 graded before, 1 with a problem" in done.stdout
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        assert gradebook.find_submission(LESSON, "ada").score == registry.exercise(F_ID).max_points
    assert [record.student for record in load_all(tmp_path, LESSON)] == ["ada"]


@pytest.mark.days(8)
def test_an_interrupt_ends_the_array_and_no_grade_is_lost(
    slurm: LocalSlurm, tmp_path: Path, make_course: MakeCourse
) -> None:
    make_course(tmp_path)
    hand_in(tmp_path, "ada", notebook(solution(F_ID)))
    assert grade(slurm, tmp_path).returncode == 0
    before = written(tmp_path)
    again = subprocess.Popen([*command(tmp_path), "--force"], env=slurm.environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not slurm.run("squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.1)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=30)
    assert again.returncode != 0
    while (left := slurm.run("squeue", "--noheader")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == ""
    assert written(tmp_path).keys() == before.keys()


def test_an_interrupt_that_slurm_does_not_hear_of_says_how_to_end_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And stays one, not a fault of Slurm's."""
    (tmp_path / "slurm.conf").touch()  # says nothing of any controller
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    waiting = batch._Waiting(tmp_path, Conditions(LESSON, 1, Unconfined()), [])
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        batch._wait_for("17", waiting)
    told = capsys.readouterr().err
    assert "job 17 may run on: " in told
    assert told.endswith("; `scancel 17` ends it\n")


def test_an_array_that_slurm_has_forgotten_is_over(
    slurm: LocalSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    assert list(batch._looks("999999")) == []


@pytest.mark.days(12)
def test_a_controller_that_does_not_answer_is_told_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not taken for an array that is over."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    monkeypatch.setattr(batch, "LOOK_EVERY", (0.05, 0.05))
    monkeypatch.setattr(batch, "SILENCE", 1.0)
    looks = batch._looks("1")
    assert next(looks) == "Slurm does not answer"
    with pytest.raises(SlurmError, match="has not answered for 1 s"):
        list(looks)


@pytest.mark.days
def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init_course(tmp_path)
    hand_in(tmp_path, "ada", notebook(solution(F_ID)))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(batch.SlurmFailed, match="no sbatch"):
        batch.grade_on_slurm(Course(tmp_path), Conditions(LESSON, 1, Unconfined()), 1)
