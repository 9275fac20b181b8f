"""What `autograder report` tells of a class, and what goes to a learning platform."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import notebook, solution
from nbgrader.api import Gradebook
from recorded import DEADLOCK, LESSON, MOST, RING, new_course, not_attempted, record, wrong

from autograder.batch.progress import Pace, in_words, progress
from autograder.batch.submissions import Event
from autograder.cli import main
from autograder.grade.records import load, save
from autograder.gradebook.course import Course
from autograder.gradebook.platforms import canvas_csv, fill_canvas, fill_moodle, moodle_csv
from autograder.gradebook.problems import CourseError
from autograder.gradebook.report import Score, lost_points, plain
from autograder.gradebook.roster import Roster, read_roster
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id

ROSTER = "id,name,email\nada,Ada Lovelace,ada@x.org\n4711,Marie Curie,marie@x.org\nzoe,Zoë,zoe@x.org\n"
# Columns and forms as in Moodle's grading worksheet and Canvas's exported gradebook.
WORKSHEET = (
    "\ufeffIdentifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
    '"Last modified (submission)","Last modified (grade)","Feedback comments"\n'
    "Participant 4711,Marie Curie,marie@x.org,Submitted for grading,,100.00,Yes,"
    '"Saturday, 21 November 2026, 3:04 PM",-,\n'
    "Participant 99,Nobody Else,nobody@x.org,No submission,,100.00,Yes,-,-,\n"
)
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Lesson 01 (7),00 Collectives (8),Current Score\n"
    f'"    Points Possible",,,,,10,{MOST},(read only)\n'
    '"Curie, Marie",4711,m17,marie,One,9,,93\n'
    '"Lovelace, Ada",12,a1,ada,One,8,,81\n'
)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    found = new_course(tmp_path_factory.mktemp("class"))
    (found.root / "roster.csv").write_text(ROSTER, encoding="utf-8")
    record(found, "ada", notebook(solution(RING)), {RING: wrong("messages")})
    record(found, "4711", notebook(solution(RING)), {RING: not_attempted, DEADLOCK: not_attempted})
    record(found, "guest", notebook(solution(RING)))
    return found


def autograder(course: Course, *words: str) -> Result:
    done = CliRunner().invoke(main, [*words, "--course", str(course.root)])
    assert done.exit_code == 0, done.output
    return done


def test_the_report_has_names_and_those_who_handed_nothing_in(course: Course) -> None:
    lines = autograder(course, "report", "00").stdout.splitlines()
    names = [line[:32].strip() for line in lines[1:5]]
    assert names == ["Ada Lovelace (ada)", "guest", "Marie Curie (4711)", "Zoë (zoe)"]
    assert "not graded" in lines[4]
    assert ["NOT IN ROSTER" in line for line in lines[1:5]] == [False, True, False, False]


def test_a_story_is_told_by_name_or_id(course: Course) -> None:
    told = [autograder(course, "report", "00", "--explain", who).stdout for who in ("marie curie", "4711")]
    assert told[0] == told[1]
    assert told[0].startswith("4711: ")


def test_what_was_not_attempted_is_not_wrong(course: Course) -> None:
    records = [load(course.root, LESSON, student) for student in ("ada", "4711", "guest")]
    counts = lost_points(found for found in records if found is not None)
    by_name = {(count.exercise, count.name): (count.lost, count.open, count.graded) for count in counts}
    assert by_name[RING, "messages"] == (1, 1, 3)
    assert by_name[RING, "sum-values"] == (0, 1, 3)
    assert by_name[DEADLOCK, "grid-sums-calls"] == (0, 1, 3)


@pytest.mark.days
def test_the_csv_has_a_name_of_its_own(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    autograder(course, "report", "00", "--csv", "--figure", "lost.png")
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / f"{LESSON}.csv").open())}
    assert rows["4711"]["name"] == "Marie Curie"
    assert rows["4711"]["not_attempted"] == f"{RING} {DEADLOCK}"
    assert rows["ada"]["not_attempted"] == ""
    assert rows["ada"]["score"] == str(MOST - registry.exercise(RING).property("messages").points)
    assert (tmp_path / "lost.png").stat().st_size > 10_000


def test_points_that_have_changed_are_told(course: Course) -> None:
    assert "points now" not in autograder(course, "report", "00").stdout
    kept = load(course.root, LESSON, "guest")
    assert kept is not None
    report = kept.graded[RING].report
    older = replace(report, rows=report.rows[1:])
    before = replace(kept, graded={**kept.graded, RING: replace(kept.graded[RING], report=older)})
    save(course.root, before)
    told = autograder(course, "report", "00").stdout.splitlines()[-1]
    save(course.root, kept)
    most = registry.exercise(RING).max_points
    expected = f"{RING} has {most} points now, and had {older.max_points:g} when 1 of 3 were graded"
    assert told == f"{expected}: `autograder grade 00` grades them again"


def test_a_roster_without_ids_is_told(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("who,what\nada,x\n")
    with pytest.raises(CourseError, match=r"expected the columns id and name.*found \['who', 'what'\]"):
        read_roster(tmp_path)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["ada,Ada", 'bob,"Bob', "cyd,Cyd"], "roster.csv, line 3: not a line of a table"),
        (["ada,Ada", 'bob,"B"ob', "cyd,Cyd"], "roster.csv, line 3: not a line of a table"),
        (["ada,Ada", *(f'"{n},x' for n in range(30_000))], "roster.csv, line 3: not a line of a table"),
        (["ada,Ada", "bob,Bob", "ada,Other"], "the id 'ada' belongs to Ada and to Other"),
    ],
)
def test_a_roster_that_cannot_be_meant_is_told(tmp_path: Path, lines: list[str], says: str) -> None:
    (tmp_path / "roster.csv").write_text("\n".join(["id,name", *lines]))
    with pytest.raises(CourseError, match=says):
        read_roster(tmp_path)


def test_one_student_in_two_lines_is_one(tmp_path: Path) -> None:
    """As platforms list those of two sections."""
    (tmp_path / "roster.csv").write_text("id,name\nada,Ada\nada,Ada\n")
    assert len(read_roster(tmp_path).people) == 1


@pytest.mark.parametrize("file", [WORKSHEET, CANVAS])
def test_a_platforms_file_is_a_roster(tmp_path: Path, file: str) -> None:
    (tmp_path / "roster.csv").write_text(file, encoding="utf-8")
    assert read_roster(tmp_path).name("4711") in ("Marie Curie", "Curie, Marie")


def test_moodles_worksheet_is_filled_in(course: Course, tmp_path: Path) -> None:
    """The column it is matched by is its own, and rows without a score stay as they were."""
    (tmp_path / "Grades.csv").write_text(WORKSHEET, encoding="utf-8")
    done = autograder(course, "export", "00", "--to", "moodle", "--into", str(tmp_path / "Grades.csv"))
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    before = list(csv.DictReader(io.StringIO(WORKSHEET.removeprefix("\ufeff"))))
    score = next(score for score in course.scores(LESSON) if score.student == "4711")
    before[0]["Grade"] = score.text
    assert rows == before
    assert "not in Grades.csv: ada" in done.stderr
    assert f"the assignment's maximum is 100.00, the lesson has {MOST} points" in done.stderr


def test_canvass_gradebook_is_filled_in(course: Course, tmp_path: Path) -> None:
    """Only this assignment's column goes back, beside those that Canvas finds students by."""
    (tmp_path / "Grades.csv").write_text(CANVAS, encoding="utf-8")
    done = autograder(course, "export", "00", "--to", "canvas", "--into", str(tmp_path / "Grades.csv"))
    head, possible, marie, ada = csv.reader(io.StringIO(done.stdout))
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "00 Collectives (8)"]
    assert possible[-1] == f"{MOST}"
    scores = {score.student: score.text for score in course.scores(LESSON)}
    assert (marie[-1], ada[-1]) == (scores["4711"], scores["ada"])
    assert "not in Grades.csv: guest" in done.stderr
    assert "maximum" not in done.stderr


def test_another_maximum_of_canvass_is_told(course: Course, tmp_path: Path) -> None:
    (tmp_path / "Grades.csv").write_text(CANVAS.replace(f",{MOST},", ",100,", 1), encoding="utf-8")
    done = autograder(course, "export", "00", "--to", "canvas", "--into", str(tmp_path / "Grades.csv"))
    assert f"the assignment's maximum is 100, the lesson has {MOST} points: Canvas counts" in done.stderr


@pytest.mark.parametrize("form", ["moodle", "canvas"])
def test_an_id_that_two_rows_have_is_filled_into_neither(course: Course, tmp_path: Path, form: str) -> None:
    """One's number on the platform may be another's at school: who handed nothing in would get the score."""
    sheet = WORKSHEET.replace("Identifier,", "Identifier,ID number,", 1)
    sheet = sheet.replace("4711,Marie", "4711,m17,Marie").replace("99,Nobody", "99,4711,Nobody")
    text = {"moodle": sheet, "canvas": CANVAS.replace("12,a1", "12,4711")}[form]
    (tmp_path / "Grades.csv").write_text(text, encoding="utf-8")
    done = autograder(course, "export", "00", "--to", form, "--into", str(tmp_path / "Grades.csv"))
    column = "Grade" if form == "moodle" else "00 Collectives (8)"
    people = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row[column] != f"{MOST}"]
    assert [row[column] for row in people] == ["", ""]
    assert "several rows have the id '4711', and none of them was filled in" in done.stderr
    assert "not in Grades.csv: 4711" not in done.stderr


def test_a_column_whose_title_only_begins_with_the_digits_is_another() -> None:
    with pytest.raises(CourseError, match="which column is 10_planning"):
        fill_canvas("Student,ID,Section,100 points bonus (3)\n", [], "10_planning")


def test_canvass_own_columns_are_not_written_into(course: Course, tmp_path: Path) -> None:
    (tmp_path / "Grades.csv").write_text(CANVAS, encoding="utf-8")
    words = ["export", "00", "--to", "canvas", "--into", str(tmp_path / "Grades.csv"), "--column", "ID"]
    done = CliRunner().invoke(main, [*words, "--course", str(course.root)])
    assert done.exit_code == 1
    assert "expected an assignment's column 'ID'; there are ['Lesson 01 (7)', '00 Coll" in done.stderr


def test_a_file_that_is_not_the_platforms_is_refused(course: Course, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    words = [
        "export",
        "00",
        "--to",
        "moodle",
        "--into",
        str(tmp_path / "x.csv"),
        "--course",
        str(course.root),
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "expected the columns Identifier, Grade; found a, b" in done.stderr


def test_a_score_that_waits_is_not_exported(course: Course, tmp_path: Path) -> None:
    with Gradebook(course.db_url) as gradebook:
        grade = gradebook.find_grade(grade_id(RING, "messages"), LESSON, LESSON, "4711")
        before, grade.auto_score = grade.auto_score, None
        gradebook.db.commit()
        (tmp_path / "Grades.csv").write_text(WORKSHEET, encoding="utf-8")
        done = autograder(course, "export", "00", "--to", "moodle", "--into", str(tmp_path / "Grades.csv"))
        grade.auto_score = before
        gradebook.db.commit()
    assert next(csv.DictReader(io.StringIO(done.stdout)))["Grade"] == ""


def test_time_left_is_that_of_the_whole_class() -> None:
    """Ten were graded before, and count as no speed; two at once are twice as fast as one."""
    pace = Pace(total=110, started=0.0)
    for _ in range(10):
        pace.note(Event("x", None, kept=True), 1.0)
    assert in_words(pace.left(2.0)) == "time left: known after the first submission"
    for now in (31.0, 31.0, 61.0, 61.0):
        pace.note(Event("x", None), now)
    assert pace.left(61.0) == pytest.approx(96 * 15)
    assert in_words(pace.left(71.0)) == "about 24 min left"


@pytest.mark.parametrize(("total", "lines"), [(1, 0), (3, 2), (400, 19), (401, 19)])
def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str], total: int, lines: int) -> None:
    """Where no bar can be drawn, as in a job at night; and nothing goes to who reads what is printed."""
    bar, note = progress("00_collectives", total)
    with bar:
        for _ in range(total):
            note(Event("x", None))
    printed = capsys.readouterr()
    assert printed.out == ""
    told = printed.err.splitlines()
    assert len(told) == lines
    assert all(re.fullmatch(rf"00_collectives: \d+ of {total}, about \d+ s left", line) for line in told)


@pytest.mark.parametrize(
    "text", ["=1+1", " @x", "＝1+1", "＋1", "－1", "＠x", "\ufeff=1+1", "\u200b＝1", '"=1']
)
def test_no_text_is_a_formula(text: str) -> None:
    """The full-width signs are taken for the others where Chinese or Japanese is written."""
    assert plain(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("a;=1", "a;'=1"),
        ("a; ＝1;b", "a;' ＝1;b"),
        ("\t+1", "'\t'+1"),
        ('a|"-1"', 'a|\'"-1"'),
        ("a\n@x", "a\n'@x"),
    ],
)
def test_no_part_of_a_text_is_a_formula(text: str, becomes: str) -> None:
    assert plain(text) == becomes


@pytest.mark.parametrize("text", ["", " ", "a=1", "a; b", "3, -1", "ada", "(+1)", "*", "﹟"])
def test_other_texts_stay(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_an_export_begins_no_cell_within_a_text(separator: str) -> None:
    """Whatever a program takes to separate cells."""
    student = f"a{separator}=1+1"
    scores, nobody = [Score(student, 3, 8, True)], Roster()
    filled = fill_moodle(f'Identifier,Grade\n"{student}",\n', scores).text
    for text in (moodle_csv(scores, LESSON, nobody), canvas_csv(scores, LESSON, nobody, 8), filled):
        rows = list(csv.reader(io.StringIO(text), delimiter=separator))
        assert not [cell for row in rows for cell in row if cell.startswith("=")], text
