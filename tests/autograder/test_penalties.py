"""A late penalty is that of the score there is now, whoever gave the points and whoever reads them."""

from __future__ import annotations

import csv
import stat
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from conftest import notebook, solution
from nbgrader.api import Gradebook
from nbgrader.apps.exportapp import ExportApp
from recorded import DEADLOCK, LESSON, MOST, RING, new_course, record, wrong

from autograder.batch.submissions import merge_if_needed
from autograder.cli import main
from autograder.grade.records import load, save
from autograder.grade.reference import REPOSITORY
from autograder.gradebook.course import CONFIG_FILE, Course, Submitted
from autograder.gradebook.pages import LATE
from autograder.gradebook.problems import CourseError
from labkit.checks import registry

DUE = datetime(2026, 11, 20, 12)
LATE_BY_A_DAY = "2026-11-21 12:00:00 UTC"
PLUGIN = """
from nbgrader.plugins import BasePlugin

class Half(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return score / 2

class Fails(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 1 / (score - score)

class NoNumber(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return float("nan")

class TooMuch(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 1000 if student_id == "lena" else -1000
"""
ZERO = "c.LateSubmissionPlugin.penalty_method = 'zero'"
HALF = "c.AssignLatePenalties.plugin_class = 'late.Half'"
RINGS = registry.exercise(RING).max_points


def late_course(root: Path, line: str) -> Course:
    """A lesson that was due the day before everybody handed in."""
    new_course(root)
    (root / "late.py").write_text(PLUGIN)
    configure(root, line)
    course = Course(root)
    with Gradebook(course.db_url) as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=DUE)
    return course


def configure(root: Path, line: str) -> None:
    with (root / CONFIG_FILE).open("a") as config:
        config.write(f"{line}\n")


def hand_in_late(course: Course, student: str, held: Sequence[str] = (), lost: Sequence[str] = ()) -> None:
    """Right answers but for what is lost, with all points of some exercises held back for a person."""
    handed_in = course.root / "submitted" / student / LESSON / "timestamp.txt"
    handed_in.parent.mkdir(parents=True)
    handed_in.write_text(LATE_BY_A_DAY)
    changes = {
        exercise: wrong(*(p.name for p in registry.exercise(exercise).properties)) for exercise in lost
    }
    made = record(course, student, notebook(solution(RING)), changes)
    for exercise in held:
        made.graded[exercise].held = [row.name for row in made.graded[exercise].report.rows]
    save(course.root, made)
    again(course, student)


def again(course: Course, student: str, feedback: bool = True) -> None:
    """What a second `autograder grade` does for somebody who is graded."""
    path = course.root / "submitted" / student / LESSON / f"{LESSON}.ipynb"
    merge_if_needed(course, LESSON, Submitted(student, path), feedback)


def give_all_points(course: Course, student: str) -> None:
    """What a person does in formgrader with points that are not there."""
    with Gradebook(course.db_url) as gradebook:
        for grade in gradebook.find_submission_notebook(LESSON, LESSON, student).grades:
            if grade.score != grade.max_score:
                grade.manual_score, grade.needs_manual_grade = grade.max_score, False
        gradebook.db.commit()


def penalty_in_gradebook(course: Course, student: str) -> float:
    with Gradebook(course.db_url) as gradebook:
        return float(gradebook.find_submission(LESSON, student).late_submission_penalty)


def scores(course: Course) -> dict[str, tuple[str, float]]:
    return {score.student: (score.text, score.late_penalty) for score in course.scores(LESSON)}


@pytest.mark.days
@pytest.mark.parametrize(("line", "off"), [(ZERO, MOST), (HALF, MOST / 2)])
def test_points_that_a_person_gives_later_have_the_penalty_at_once(
    tmp_path: Path, line: str, off: float
) -> None:
    """Those that were held back, and those that were lost, in every table of scores."""
    course = late_course(tmp_path, line)
    hand_in_late(course, "luca")
    hand_in_late(course, "lena", held=[exercise.id for exercise in registry.exercises("00")])
    hand_in_late(course, "lars", lost=[RING])
    assert scores(course)["lena"] == ("", 0), "nothing to take from"
    for student in ("lena", "lars"):
        give_all_points(course, student)
    assert scores(course) == dict.fromkeys(("lars", "lena", "luca"), (f"{MOST - off:g}", off))
    exported = CliRunner().invoke(main, ["export", "00", "--course", str(tmp_path), "--to", "moodle"])
    rows = list(csv.DictReader(exported.stdout.splitlines()))
    assert {row[LESSON] for row in rows} == {f"{MOST - off:g}"}


@pytest.mark.days
def test_the_next_grade_brings_gradebook_and_pages_up_to_date_and_asks_nobody_again(tmp_path: Path) -> None:
    course = late_course(tmp_path, HALF)
    hand_in_late(course, "lena", held=[RING])
    before = (MOST - RINGS) / 2
    assert penalty_in_gradebook(course, "lena") == before
    give_all_points(course, "lena")
    again(course, "lena")
    assert penalty_in_gradebook(course, "lena") == MOST / 2
    page = (tmp_path / "feedback" / "lena" / LESSON / f"{LESSON}.html").read_text()
    assert f"{MOST / 2:g} less as it was handed in late" in page
    shown = tmp_path / "autograded" / "lena" / LESSON / f"{LESSON}.ipynb"
    assert f"{MOST / 2:g} points are taken off" in nbformat.read(shown, as_version=4).metadata[LATE]
    with Gradebook(course.db_url) as gradebook:
        grades = gradebook.find_submission_notebook(LESSON, LESSON, "lena").grades
        assert not any(grade.needs_manual_grade for grade in grades), "a person has seen them"
    written = shown.stat().st_mtime_ns
    again(course, "lena")
    assert shown.stat().st_mtime_ns == written, "once"


@pytest.mark.days
def test_a_page_that_was_left_out_is_made_by_the_next_grade_with_pages(tmp_path: Path) -> None:
    course = late_course(tmp_path, HALF)
    hand_in_late(course, "lars", lost=[RING])
    give_all_points(course, "lars")
    again(course, "lars", feedback=False)
    assert penalty_in_gradebook(course, "lars") == MOST / 2
    again(course, "lars")
    page = (tmp_path / "feedback" / "lars" / LESSON / f"{LESSON}.html").read_text()
    assert f"{MOST / 2:g} less as it was handed in late" in page


NOTED = """
import os, sys
from pathlib import Path
from autograder.gradebook.penalties import _note_again

sys.addaudithook(lambda event, _: os._exit(9) if event == "os.chmod" else None)
_note_again(Path(sys.argv[1]), "late")
"""


@pytest.mark.days
def test_a_graded_notebook_is_never_open_to_more_people(tmp_path: Path) -> None:
    """Not even where the process is ended when it is about to put that right."""
    graded = tmp_path / "graded.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), graded)
    graded.chmod(0o640)
    subprocess.run([sys.executable, "-c", NOTED, str(graded)], env={"PYTHONPATH": str(REPOSITORY)})
    assert nbformat.read(graded, as_version=4).metadata[LATE] == "late"
    assert stat.S_IMODE(graded.stat().st_mode) == 0o640


@pytest.mark.days
def test_nbgraders_feedback_and_export_go_by_the_present_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = late_course(tmp_path, HALF)
    hand_in_late(course, "lena", held=[DEADLOCK])
    hand_in_late(course, "lars", lost=[DEADLOCK])
    for student in ("lena", "lars"):
        give_all_points(course, student)
    page = course.feedback(LESSON, "lena").read_text()  # as `nbgrader generate_feedback` makes it
    assert f"{MOST / 2:g} less as it was handed in late" in page
    assert penalty_in_gradebook(course, "lena") == MOST / 2
    monkeypatch.chdir(tmp_path)
    app = ExportApp()
    app.initialize(["--to", "grades.csv"])
    app.start()
    rows = {row["student_id"]: row for row in csv.DictReader((tmp_path / "grades.csv").open())}
    for student in ("lena", "lars"):
        told = [float(rows[student][name]) for name in ("raw_score", "late_submission_penalty", "score")]
        assert told == [MOST, MOST / 2, MOST / 2]
        shown = tmp_path / "autograded" / student / LESSON / f"{LESSON}.ipynb"
        assert f"{MOST / 2:g} points are taken off" in nbformat.read(shown, as_version=4).metadata[LATE]


@pytest.mark.days
def test_a_penalty_is_never_more_than_the_score_and_never_less_than_nothing(tmp_path: Path) -> None:
    course = late_course(tmp_path, "c.AssignLatePenalties.plugin_class = 'late.TooMuch'")
    hand_in_late(course, "lena")
    hand_in_late(course, "luca")
    assert scores(course) == {"lena": ("0", MOST), "luca": (f"{MOST:g}", 0)}


@pytest.mark.days
@pytest.mark.parametrize("plugin", ["Fails", "NoNumber"])
def test_without_a_penalty_that_is_owed_there_is_no_score_to_export(tmp_path: Path, plugin: str) -> None:
    """And grading says whose it is, and why."""
    course = late_course(tmp_path, HALF)
    hand_in_late(course, "lena")
    assert scores(course)["lena"] == (f"{MOST / 2:g}", MOST / 2)
    configure(tmp_path, f"c.AssignLatePenalties.plugin_class = 'late.{plugin}'")
    course = Course(tmp_path)
    assert scores(course)["lena"] == ("", 0)
    assert load(tmp_path, LESSON, "lena") is not None
    with pytest.raises(CourseError, match=rf"plugin of late penalties, {plugin}, fails for lena: \w+Error"):
        again(course, "lena")
