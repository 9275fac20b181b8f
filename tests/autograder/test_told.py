"""What is wrong with a course is told in a sentence that names the file and what to do: no traceback."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from conftest import hand_in, notebook, solution
from nbgrader.api import Gradebook
from recorded import LESSON, MOST, RING, new_course, record

from autograder.cli import main
from autograder.grade.deciding import checks_digest
from autograder.grade.evidence import Baseline
from autograder.grade.records import FOLDER, load, path_of
from autograder.gradebook.alone import alone
from autograder.gradebook.course import CONFIG_FILE, Course
from autograder.gradebook.platforms import fill_moodle
from autograder.gradebook.problems import CourseError
from autograder.gradebook.report import Score
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id

pytestmark = pytest.mark.days()


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Ada has all points of lesson 00, and the reference has been graded: no command has to run anything."""
    root = tmp_path / "course"
    found = new_course(root)
    record(found, "ada", notebook(solution(RING)))
    baseline = root / FOLDER / LESSON / f".reference-3-{checks_digest(LESSON)}-none.json"
    baseline.write_bytes(msgspec.json.encode(Baseline.of([])))
    return found


def autograder(course: Course, command: str, *words: str) -> Result:
    unsafe = ["--unsafe-no-sandbox"] if command in ("grade", "regrade") else []
    return CliRunner().invoke(main, [command, "00", "--course", str(course.root), *unsafe, *words])


def refused(course: Course, command: str, *words: str) -> str:
    """What a command says that cannot be done."""
    done = autograder(course, command, *words)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), f"a message, no traceback: {done.exception!r}"
    return done.stderr


def test_a_course_that_is_right_is_graded(course: Course) -> None:
    done = autograder(course, "grade")
    assert done.exit_code == 0, done.output
    assert "kept 1 graded before, 0 with a problem" in done.stdout
    assert f'"ada","","{MOST}"' in autograder(course, "export", "--to", "moodle").stdout


@pytest.mark.parametrize("command", ["grade", "regrade", "report", "add", "export"])
def test_a_gradebook_that_is_none(course: Course, command: str) -> None:
    (course.root / "gradebook.db").write_bytes(b"no database" * 100)
    said = refused(course, command, *(["--to", "moodle"] if command == "export" else []))
    assert "the gradebook cannot be used: file is not a database" in said
    assert "put a copy back" in said
    assert (course.root / "release" / LESSON / f"{LESSON}.ipynb").is_file()


def test_a_gradebook_that_another_program_writes(course: Course) -> None:
    """With a configuration that is tried before: what else is done, is done."""
    other = sqlite3.connect(course.root / "gradebook.db")
    other.execute("BEGIN EXCLUSIVE")
    assert "database is locked" in refused(course, "report")
    other.close()
    assert autograder(course, "report").exit_code == 0


def test_settings_that_cannot_be_read(course: Course) -> None:
    for text in (
        "{",
        "[]",
        '{"seeds": {}}',
        '{"seeds": {}, "unsafe": "false"}',
        '{"seeds": 3, "unsafe": true}',
    ):
        (course.root / "autograder.json").write_text(text)
        assert "autograder.json cannot be read" in refused(course, "grade")


@pytest.mark.parametrize(
    ("name", "command", "words"),
    [
        ("roster.csv", "report", []),
        ("roster.csv", "grade", []),
        ("extensions.csv", "grade", []),
        ("extensions.csv", "regrade", []),
        ("Grades.csv", "export", ["--to", "moodle", "--into"]),
    ],
)
def test_a_table_in_another_encoding(course: Course, name: str, command: str, words: list[str]) -> None:
    """As Excel saves one in the west of Europe."""
    path = course.root / name
    path.write_bytes("id,name\n1,Ada\n2,Jörg\n".encode("latin-1"))
    said = refused(course, command, *words, *([str(path)] if words else []))
    assert f"{path}, line 3: expected UTF-8, found the byte 0xf6" in said
    assert '"CSV UTF-8"' in said


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        ("grade", ["--student", "adda"], "'adda' handed in nothing for 00_collectives; did you mean ada?"),
        ("regrade", ["--student", "eve"], "'eve' handed in nothing"),
        ("regrade", ["--exercise", "01.inference-bytes"], "an exercise of another lesson"),
        ("export", ["--to", "moodle", "-o", "/not/there.csv"], "/not/there.csv"),
        ("report", ["--csv", "/not/there.csv"], "/not/there.csv"),
        ("report", ["--figure", "/not/there.png"], "/not/there.png"),
        ("report", ["--figure", "there.doc"], "expected a name with .png, .pdf or .svg"),
    ],
)
def test_a_name_that_is_not_there(course: Course, command: str, words: list[str], says: str) -> None:
    assert says in refused(course, command, *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "00", "--to", "moodle", "--column", "Lesson"], "--column is of Canvas's file"),
        (["export", "00", "--to", "canvas", "--column", "Lesson"], "give --to canvas and --into FILE"),
        (["export", "00", "--to", "moodle", "--canvas-ids"], "--canvas-ids is about Canvas"),
        (["report", "00", "--similar", "--ranking"], "each shown alone"),
        (["report", "00", "--ranking", "--csv"], "each shown alone"),
        (["report", "00", "--similar", "--explain", "ada"], "each shown alone"),
        (["selftest", "--sample", "3"], "give --systematic with it"),
        (["selftest", "--systematic", "--seed", "3"], "give --sample with it"),
        (["selftest", "--systematic", "--seeds", "3"], "leave it out"),
        (["selftest", "--seeds", "0"], "0 is not in the range x>=1"),
        (["selftest", "--systematic", "--sample", "0"], "0 is not in the range x>=1"),
        (
            ["selftest", "--lesson", "05", "--exercise", "06.row-parallel-linear"],
            "an exercise of 05_checkpoint",
        ),
        (
            ["selftest", "--systematic", "--lesson", "05", "--exercise", "06.row-parallel-linear"],
            "none of 06.",
        ),
    ],
)
def test_options_that_do_not_go_together(course: Course, words: list[str], says: str) -> None:
    of_course = ["--course", str(course.root)] if words[0] in ("export", "report") else []
    done = CliRunner().invoke(main, [*words, *of_course])
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "status"), [(["export", "01", "--to", "moodle"], 1), (["report", "01"], 0)]
)
def test_a_lesson_that_nobody_added_is_told(course: Course, words: list[str], status: int) -> None:
    done = CliRunner().invoke(main, [*words, "--course", str(course.root)])
    assert done.exit_code == status
    assert "01_memory_math is not in the gradebook: `autograder grade 01`" in done.stderr


def test_a_lesson_that_nobody_added_is_told_whatever_was_handed_in(course: Course) -> None:
    hand_in(course.root, "bob", notebook(), lesson="01_memory_math")
    done = CliRunner().invoke(main, ["report", "01", "--course", str(course.root)])
    assert "01_memory_math is not in the gradebook: `autograder grade 01`" in done.stderr


def test_that_nobody_is_graded_is_told(tmp_path: Path) -> None:
    assert "nobody is graded for 00_collectives yet" in autograder(new_course(tmp_path), "report").stderr


def test_a_record_that_cannot_be_read_is_told(course: Course) -> None:
    """Its student is not passed over in silence, nor is it said that nobody is graded."""
    path = path_of(course.root, LESSON, "ada")
    path.write_bytes(path.read_bytes()[:100])
    told = autograder(course, "report").stderr
    assert told.startswith(f"{path} cannot be read, and whoever is in there is missing here")
    assert "`autograder grade 00` makes it again" in told
    assert "nobody is graded" not in told


def test_whose_record_is_not_there_is_told_with_who_may_be_meant(course: Course) -> None:
    assert f"no record of 'adda' for {LESSON}; did you mean ada?" in refused(
        course, "report", "--explain", "adda"
    )
    (course.root / "roster.csv").write_text("id,name\nada,Ada Lovelace\n")
    said = refused(course, "report", "--explain", "ada lovlace")
    assert "did you mean Ada Lovelace" in said


@pytest.mark.parametrize("form", ["moodle", "canvas"])
def test_an_id_that_no_platform_finds_is_told(course: Course, form: str) -> None:
    record(course, "-rf", notebook(solution(RING), "# rf"))
    done = autograder(course, "export", "--to", form)
    assert done.exit_code == 0
    assert '"\'-rf"' in done.stdout
    (line,) = done.stderr.splitlines()
    assert "the id '-rf' is written as \"'-rf\"" in line
    assert f"{form.capitalize()} finds nobody by that: write the score {MOST} there" in line


def test_that_nobody_handed_in_is_told(tmp_path: Path, course: Course) -> None:
    """At once: the reference is graded for somebody."""
    (course.root / "submitted").rename(tmp_path / "elsewhere")
    measured = course.root / FOLDER / LESSON / f".reference-3-{checks_digest(LESSON)}-none.json"
    measured.unlink()
    for command in ("grade", "regrade"):
        done = autograder(course, command)
        assert f"expected submitted/STUDENT/{LESSON}/{LESSON}.ipynb" in done.stderr
        assert done.exit_code == 0
    assert not measured.exists()


@pytest.mark.parametrize("name", ["1205-mine.ipynb", "2024-06-01.ipynb", "²³.ipynb", "mine.ipynb"])
def test_a_renamed_notebook_is_verified_as_its_folders_lesson(tmp_path: Path, name: str) -> None:
    """As `labkit validate` has it."""
    path = tmp_path / LESSON / name
    path.parent.mkdir()
    path.write_bytes(b"no notebook")
    found = CliRunner().invoke(main, ["verify", str(path), "--json", "--unsafe-no-sandbox"])
    ids = json.loads(found.stdout)["exercises"]
    assert ids
    assert {one[:2] for one in ids} == {LESSON[:2]}


def test_a_notebook_of_no_lesson_is_told_how_to_name_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.ipynb"
    path.write_bytes(b"no notebook")
    refused = CliRunner().invoke(main, ["verify", str(path), "--unsafe-no-sandbox"])
    assert refused.exit_code == 1
    assert "mine.ipynb: expected a name that begins with the lesson's number" in refused.stderr
    assert "or --lesson NN" in refused.stderr


def test_what_is_no_course_is_left_as_it_is(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["add", "00", "--course", str(tmp_path)])
    assert done.exit_code == 1
    assert "is not a course" in done.stderr
    assert 0 < done.stderr.index("--course DIRECTORY") < done.stderr.index("autograder init")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgres://tml@host/tml", "gradebook.db"])
def test_a_gradebook_whose_address_is_none(course: Course, url: str) -> None:
    with (course.root / CONFIG_FILE).open("a") as config:
        config.write(f"c.CourseDirectory.db_url = {url!r}\nc.CourseDirectory.course_id = 'tml'\n")
    for command in ("grade", "report"):
        said = refused(course, command)
        assert f"{CONFIG_FILE}: c.CourseDirectory.db_url cannot be used" in said


def test_a_roster_that_cannot_be_read_is_told_before_anybody_is_graded(course: Course) -> None:
    """Or the class would be graded first, and what was wrong with whom not be told."""
    (course.root / "roster.csv").write_text("number,called\n1,Ada\n")
    hand_in(course.root, "bob", b"{}", lesson=LESSON)
    assert "expected the columns id and name" in refused(course, "grade")
    assert load(course.root, LESSON, "bob") is None


def test_one_command_at_a_time(course: Course) -> None:
    with alone(course.root):
        for command in ("grade", "regrade", "add"):
            assert f"{course.root} is being graded by process " in refused(course, command)
        assert autograder(course, "report").exit_code == 0
    assert autograder(course, "grade").exit_code == 0


def test_a_student_who_cannot_be_graded_is_told_and_the_others_are(course: Course) -> None:
    hand_in(course.root, "bob", notebook(), lesson=LESSON).with_name("timestamp.txt").write_text("soon")
    (course.root / "submitted" / "cyd" / LESSON).mkdir(parents=True)
    done = autograder(course, "grade")
    assert done.exit_code == 1
    assert "kept 1 graded before, 2 with a problem" in done.stdout
    assert "bob: " in done.stderr
    assert "cyd: no notebook" in done.stderr
    assert "Traceback" not in done.stderr
    assert "cyd" not in autograder(course, "grade", "--student", "ada").stderr
    again = autograder(course, "regrade", "--student", "cyd")
    assert again.exit_code == 1
    assert "graded 0, kept 0 graded before, 1 with a problem" in again.stdout
    assert "cyd: no notebook" in again.stderr


def test_what_can_be_had_is_known_before_anybody_handed_in(tmp_path: Path) -> None:
    exported = autograder(new_course(tmp_path), "export", "--to", "canvas").stdout
    assert next(csv.DictReader(io.StringIO(exported)))[LESSON] == f"{MOST:g}"


def test_what_cannot_be_read_is_told_each_time(course: Course) -> None:
    """It has no points: a failed upload is not to be found out by the student."""
    hand_in(course.root, "zed", notebook(), lesson=LESSON).write_text("PK, a zip")
    for _ in range(2):
        done = autograder(course, "grade", "--student", "zed")
        assert done.exit_code == 1
        assert (
            f"zed: 0 points, as what was handed in cannot be read: {LESSON}.ipynb is not a notebook"
            in done.stderr
        )
    assert "UNREADABLE" in autograder(course, "report").stdout
    table = csv.DictReader((course.root / FOLDER / LESSON / "grades.csv").read_text().splitlines())
    assert {row["student"]: "is not a notebook" in row["problem"] for row in table} == {
        "ada": False,
        "zed": True,
    }


def as_earlier(course: Course, name: str, points: float) -> str:
    """Have the gradebook's first graded cell another name and other points; returns its own name."""
    own = grade_id(RING, registry.exercise(RING).properties[0].name)
    with Gradebook(course.db_url) as gradebook:
        cell = gradebook.find_grade_cell(own, LESSON, LESSON)
        cell.name, cell.max_score = name or own, points
        gradebook.db.commit()
    return own


def test_a_lesson_with_other_graded_cells_is_not_graded_into(course: Course) -> None:
    """Points would be lost, and others wait for ever. Nor is its release taken away."""
    name = as_earlier(course, "00_before", 1)
    for command in ("grade", "regrade"):
        assert f"other graded cells than this version ({name})" in refused(course, command)
    assert f"other graded cells than this version (00_before, {name})" in refused(course, "add")
    assert (course.root / "release" / LESSON / f"{LESSON}.ipynb").is_file()


def test_a_lesson_with_other_points_is_brought_up_to_date(course: Course) -> None:
    name = as_earlier(course, "", 99)
    said = refused(course, "grade")
    assert f"{name} (99 points, now " in said
    assert "`autograder add 00` brings it up to date" in said
    assert autograder(course, "add").exit_code == 0
    assert autograder(course, "grade").exit_code == 0
    assert [score.max_score for score in course.scores(LESSON)] == [MOST]


def test_a_step_of_nbgraders_that_fails_is_told_by_its_error(course: Course) -> None:
    """And not by the traceback that leads to it."""
    page = course.root / "feedback" / "ada"
    (page / LESSON / f"{LESSON}.html").unlink()
    (page / LESSON).rmdir()
    (page / LESSON).write_text("in the way")
    done = autograder(course, "grade")
    assert done.exit_code == 1
    assert "Traceback" not in done.stderr
    assert "Not a directory" in done.stderr
    assert done.stderr.count("\n") < 6


def test_what_a_teacher_wrote_in_a_worksheet_keeps_its_lines() -> None:
    given = 'Identifier,Full name,Grade,"Feedback comments"\r\nParticipant 1,Ada,,"Good.\nGo on!"\r\n'
    (_, row) = csv.reader(io.StringIO(fill_moodle(given, [Score("1", 3, 4, True)]).text))
    assert row == ["Participant 1", "Ada", "3", "Good.\nGo on!"]


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone(tmp_path):
        raise ZeroDivisionError
    with alone(tmp_path), pytest.raises(CourseError, match="wait until that ends"), alone(tmp_path):
        pass
