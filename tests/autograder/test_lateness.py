"""Late penalties: times of handing in, extensions, and the score with and without the penalty."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import notebook, solution
from nbgrader.api import Gradebook
from recorded import LESSON, MOST, RING, new_course, record

from autograder.batch.submissions import merge_if_needed
from autograder.grade.records import load_all
from autograder.gradebook import lateness
from autograder.gradebook.course import CONFIG_FILE, Course, Submitted
from autograder.gradebook.lateness import extend, read_extensions, unused_extensions
from autograder.gradebook.listing import Listing, as_csv, table
from autograder.gradebook.pages import SubmissionPage
from autograder.gradebook.problems import CourseError

DUE = datetime(2026, 11, 20, 12)
TWO_A_DAY = """
from nbgrader.plugins import BasePlugin

class TwoADay(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 2 * (total_seconds_late / 86400)
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Two points for each day after DUE, and two students who were two days late."""
    tmp_path = tmp_path_factory.mktemp("late")
    new_course(tmp_path)
    (tmp_path / "two_a_day.py").write_text(TWO_A_DAY)
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write("c.AssignLatePenalties.plugin_class = 'two_a_day.TwoADay'\n")
    found = Course(tmp_path)
    with Gradebook(found.db_url) as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate=DUE)
    for student in ("ada", "bob"):
        handed_in = tmp_path / "submitted" / student / LESSON / "timestamp.txt"
        handed_in.parent.mkdir(parents=True)
        handed_in.write_text(f"{DUE + timedelta(days=2)} UTC")
        record(found, student, notebook(solution(RING)))
    return found


def again(course: Course, student: str) -> None:
    """What a second `autograder grade` does for somebody who is graded."""
    path = course.root / "submitted" / student / LESSON / f"{LESSON}.ipynb"
    merge_if_needed(course, LESSON, Submitted(student, path), feedback=True)


def test_the_score_is_told_with_and_without_the_penalty(course: Course) -> None:
    scores = {score.student: score for score in course.scores(LESSON)}
    assert (scores["ada"].score, scores["ada"].late_penalty) == (MOST - 4, 4)
    listing = Listing(LESSON, load_all(course.root, LESSON), course.scores(LESSON))
    assert f"{MOST - 4} ({MOST} - 4 late)" in table(listing)
    row = next(csv.DictReader(io.StringIO(as_csv(listing))))
    told = [row[name] for name in ("points", "score_before_penalty", "late_penalty", "score")]
    assert told == [str(MOST), str(MOST), "4", str(MOST - 4)]
    page = (course.root / "feedback" / "ada" / LESSON / f"{LESSON}.html").read_text()
    assert "4 less as it was handed in late" in page
    assert "taken off" not in page, "it is told once"


def test_formgrader_tells_what_lateness_costs(course: Course) -> None:
    path = course.root / "autograded" / "bob" / LESSON / f"{LESSON}.ipynb"
    first = SubmissionPage().shown(nbformat.read(path, as_version=4)).cells[0]
    assert first.source == "**Handed in 2 days, 0:00:00 after the due date:** 4 points are taken off."


@pytest.mark.days
def test_a_line_in_a_file_gives_one_student_more_time(course: Course) -> None:
    """It counts at the next run, which grades nobody again, and no longer when it is taken out."""
    file = course.root / "extensions.csv"
    file.write_text("student,lesson,until\nada,00,2026-11-21 13:00 +0100\n")
    again(course, "ada")
    again(course, "bob")
    late = {score.student: score.late_penalty for score in course.scores(LESSON)}
    assert late == {"ada": 2.0, "bob": 4.0}
    file.write_text("student,lesson,until\n")
    again(course, "ada")
    assert {score.late_penalty for score in course.scores(LESSON)} == {4.0}


@pytest.mark.days
def test_an_extension_that_a_crash_leaves_ends_with_its_line(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = course.root / "extensions.csv"
    file.write_text("student,lesson,until\nada,00,2026-11-21 13:00 +0100\n")

    def extend_and_end(*about: Any) -> None:
        extend(*about)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lateness, "extend", extend_and_end)
        with pytest.raises(KeyboardInterrupt):
            again(course, "ada")
    file.write_text("student,lesson,until\n")
    again(course, "ada")
    assert {score.late_penalty for score in course.scores(LESSON)} == {4.0}


def test_a_line_about_nobody_who_handed_in_is_told(course: Course) -> None:
    file = course.root / "extensions.csv"
    lines = ["student,lesson,until", *(f"{who},2026-12-01 12:00" for who in ("ada,00", "aad,00", "aad,01"))]
    file.write_text("\n".join(lines))
    (told,) = unused_extensions(course.root, LESSON, ["ada", "bob"])
    assert told.startswith("extensions.csv gives 'aad' more time for 00_collectives")
    assert told.endswith("did you mean ada?")
    file.unlink()
    assert unused_extensions(course.root, LESSON, []) == []


def test_a_line_that_cannot_be_read_stops_before_anybody_is_graded(course: Course) -> None:
    for line in (
        *("ada,00,next week", "ada,00,23:59", "ada,00,12", "ada,00,2026-12-01", "ada,00,08.12.2026 23:59"),
        *("ada,00,2026-12-02 11:59 PM", "ada,00,2026-12-02 11:59 CEST", "ada,00,2026-12-02 11:59 Berlin"),
        *("ada,00,2026-12-02 11:59 ../Berlin", "ada,00,2026-13-02 11:59", "ada,99,2026-12-02 11:59"),
        *("ada,x,2026-12-02 11:59", "ada", 'ada,00,"2026-12-02 11:59'),
    ):
        (course.root / "extensions.csv").write_text(f"student,lesson,until\n{line}\n")
        with pytest.raises(CourseError, match=r"line 2: (expected student,lesson,until|not a line of)"):
            course.try_configuration()
    (course.root / "extensions.csv").unlink()


def test_the_line_that_is_told_is_that_of_the_file(tmp_path: Path) -> None:
    """Lines with nothing in them count, and say nothing."""
    lines = ["student,lesson,until", "", "ada,06,2026-12-01 23:59", ", ,,,", "", "bob,06,tomorrow"]
    (tmp_path / "extensions.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(CourseError, match=r"line 6: expected .*; found bob,06,tomorrow"):
        read_extensions(tmp_path)
    (tmp_path / "extensions.csv").write_text("\n".join(lines[:-1]), encoding="utf-8")
    assert [student for student, _ in read_extensions(tmp_path)] == ["ada"]


def test_two_times_for_one_student_are_refused(course: Course) -> None:
    """Which of them was meant is not for a program to say; the same one twice is no question."""
    file = course.root / "extensions.csv"
    once = "student,lesson,until\nada,00,2026-12-02 12:00\nada,0,2026-12-02 13:00 +0100\n"
    file.write_text(once)
    assert len(read_extensions(course.root)) == 1
    file.write_text(f"{once}ada,00_collectives,2026-12-03 12:00\n")
    with pytest.raises(CourseError, match=r"line 4: .*a line above gives the same student another time"):
        read_extensions(course.root)
    file.unlink()


def test_an_extension_that_is_none_is_told(course: Course) -> None:
    """It would make the student later still."""
    file = course.root / "extensions.csv"
    file.write_text("student,lesson,until\nada,00,2026-11-19 12:00\n")
    with pytest.raises(CourseError, match="which is due for all at 2026-11-20 12:00:00 UTC"):
        again(course, "ada")
    file.unlink()


@pytest.mark.days
def test_without_the_file_its_extensions_end_and_no_others(course: Course) -> None:
    file = course.root / "extensions.csv"
    file.write_text("student,lesson,until\nada,0,2026-11-21 13:00 +0100\n")
    by_hand = timedelta(days=1)
    with Gradebook(course.db_url) as gradebook:
        gradebook.find_submission(LESSON, "bob").extension = by_hand
        gradebook.db.commit()
    again(course, "ada")
    assert {score.student: score.late_penalty for score in course.scores(LESSON)}["ada"] == 2.0
    file.unlink()
    again(course, "ada")
    again(course, "bob")
    assert {score.student: score.late_penalty for score in course.scores(LESSON)}["ada"] == 4.0
    with Gradebook(course.db_url) as gradebook:
        submission = gradebook.find_submission(LESSON, "bob")
        assert submission.extension == by_hand
        submission.extension = None
        gradebook.db.commit()


@pytest.mark.parametrize(
    ("until", "utc"),
    [
        ("2026-12-01 23:59", datetime(2026, 12, 1, 23, 59)),
        ("2026-12-01 23:59 +0100", datetime(2026, 12, 1, 22, 59)),
        ("2026-12-01T23:59+01:00", datetime(2026, 12, 1, 22, 59)),
        ("2026-12-01 23:59 Europe/Berlin", datetime(2026, 12, 1, 22, 59)),
        ("2026-12-01 23:59 UTC", datetime(2026, 12, 1, 23, 59)),
        ("2026-12-01 23:59:30Z", datetime(2026, 12, 1, 23, 59, 30)),
        ("2026-07-01 23:59 America/New_York", datetime(2026, 7, 2, 3, 59)),
    ],
)
def test_zones(tmp_path: Path, until: str, utc: datetime) -> None:
    (tmp_path / "extensions.csv").write_text(f"student,lesson,until\nada,{LESSON},{until}\n")
    assert read_extensions(tmp_path) == {("ada", "00"): utc}
