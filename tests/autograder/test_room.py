"""A course whose disk or gradebook takes nothing more: told once, in a sentence; nobody is graded in vain."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import hand_in, notebook, solution
from nbgrader.api import Gradebook, InvalidEntry
from recorded import LESSON, RING, new_course, record
from sqlalchemy.exc import OperationalError

from autograder.batch.submissions import Event, grade_lesson
from autograder.cli import main
from autograder.grade.grading import Conditions
from autograder.grade.records import load_all
from autograder.gradebook.alone import FILE, alone
from autograder.gradebook.course import CONFIG_FILE, Course
from autograder.gradebook.problems import CannotGoOn, CourseError, cause_of, told
from autograder.gradebook.room import check_gradebook, check_records
from autograder.sandbox.unconfined import Unconfined

CONDITIONS = Conditions(LESSON, 3, Unconfined())
KEPT = "what was graded is kept"


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """No file can have more bytes than this, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def closed_gradebook(tmp_path: Path) -> Course:
    """A course whose gradebook can only be read; ada has a record and is not in it."""
    record(new_course(tmp_path), "ada", notebook(solution(RING)), merge=False)
    url = f"sqlite:///file:{tmp_path}/gradebook.db?mode=ro&uri=true"
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write(f"c.CourseDirectory.db_url = {url!r}\n")
    return Course(tmp_path)


@pytest.mark.days
def test_where_no_record_can_be_written_nobody_else_is_graded(tmp_path: Path) -> None:
    course, events = new_course(tmp_path), list[Event]()
    for student in ("ada", "bob", "cyd"):
        hand_in(tmp_path, student, notebook(), lesson=LESSON)
    with little_room(1000), pytest.raises(CannotGoOn, match=r"nothing can be kept in .*File too large"):
        grade_lesson(course, CONDITIONS, 1, on_event=events.append)
    assert [event.student for event in events] == ["ada"]
    assert load_all(tmp_path, LESSON) == []
    assert sorted(grade_lesson(course, CONDITIONS, 1).graded) == ["ada", "bob", "cyd"]


def test_where_a_record_cannot_be_merged_the_others_are_not_graded(
    closed_gradebook: Course, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the sentence is ours, not what nbgrader's log has of it."""
    hand_in(closed_gradebook.root, "bob", notebook(), lesson=LESSON)
    with pytest.raises(CannotGoOn, match=r"readonly database\. Let who grades write to it") as raised:
        grade_lesson(closed_gradebook, CONDITIONS, 1)
    assert KEPT in str(raised.value)
    assert [each.student for each in load_all(closed_gradebook.root, LESSON)] == ["ada"]
    with pytest.raises(CourseError) as of_one:
        closed_gradebook.merge(LESSON, "ada")
    assert str(of_one.value).count("\n") == 0
    assert "the gradebook cannot be used: attempt to write a readonly database. Let who" in str(of_one.value)
    assert capfd.readouterr() == ("", "")


def test_the_command_ends_before_anybody_is_graded(closed_gradebook: Course) -> None:
    hand_in(closed_gradebook.root, "bob", notebook(), lesson=LESSON)
    for command in ("grade", "regrade"):
        words = [command, "00", "--course", str(closed_gradebook.root), "--unsafe-no-sandbox"]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: no more is graded: the gradebook cannot be used: attempt to write a")
    assert [each.student for each in load_all(closed_gradebook.root, LESSON)] == ["ada"]


def test_one_submission_that_is_too_large_is_that_students_problem(tmp_path: Path) -> None:
    """As long as there is room for the others."""
    course = new_course(tmp_path)
    for student in ("ada", "bob"):
        record(course, student, notebook(solution(RING), f"# {student}"), merge=False)
    with (tmp_path / "submitted" / "ada" / LESSON / "data.bin").open("wb") as file:
        file.truncate(20 * 2**20)
    with little_room(5 * 2**20):
        run = grade_lesson(course, CONDITIONS, 1)
    assert run.kept == ["bob"]
    assert "File too large" in run.failed["ada"]
    assert "Traceback" not in run.failed["ada"]


def test_room_is_there_and_the_try_leaves_nothing(tmp_path: Path) -> None:
    course = new_course(tmp_path)
    before = (tmp_path / "gradebook.db").read_bytes()
    check_records(tmp_path, "01_memory_math")
    check_gradebook(course.db_url)
    assert os.listdir(tmp_path / "records" / "01_memory_math") == []
    assert (tmp_path / "gradebook.db").read_bytes() == before


def test_a_gradebook_that_another_program_writes_to_ends_nothing(tmp_path: Path) -> None:
    course = new_course(tmp_path)
    other = sqlite3.connect(tmp_path / "gradebook.db")
    other.execute("BEGIN EXCLUSIVE")
    check_gradebook(course.db_url)
    other.close()


def test_a_full_gradebook_is_told_with_what_to_do(tmp_path: Path) -> None:
    """SQLite's own error, as nbgrader wraps it."""
    course = new_course(tmp_path)
    with Gradebook(course.db_url) as gradebook:
        pages = gradebook.db.connection().exec_driver_sql("PRAGMA page_count").scalar_one()
        gradebook.db.connection().exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(InvalidEntry) as raised:
            gradebook.add_student("ada", first_name="x" * 100_000)
    cause = cause_of([raised.value])
    assert isinstance(cause, OperationalError)
    assert told(cause) == (
        "the gradebook cannot be used: database or disk is full. Make room, and run the command again; "
        + KEPT
    )


def test_a_server_that_is_down_is_told_as_one() -> None:
    down = OperationalError("", {}, Exception("connection failed:\n\tIs the server running?"))
    assert told(down).startswith(
        "the gradebook cannot be used: connection failed: Is the server running? Exp"
    )
    assert "move it away" not in told(down)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_what_a_disk_refuses_is_told_with_what_to_do(number: int) -> None:
    assert told(OSError(number, os.strerror(number), "x")).endswith(KEPT)


def test_a_copy_of_many_files_is_told_by_the_first(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for number in range(300):
        (tmp_path / "from" / f"{number:03}").write_text("x" * 100)
    with little_room(10), pytest.raises(shutil.Error) as raised:
        shutil.copytree(tmp_path / "from", tmp_path / "to")
    said = told(raised.value)
    assert said.endswith(", nor 299 more files or folders: File too large")
    full = shutil.Error([("a", "b", f"[Errno {errno.ENOSPC}] No space left on device")])
    assert told(full).startswith("a could not be copied to b: No space left on device: make room")


def test_a_lock_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=FILE), little_room(0), alone(tmp_path):
        pass
    with alone(tmp_path):
        assert (tmp_path / FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_what_an_error_was_raised_for_is_found_unless_something_else_was_to_be_told() -> None:
    full = OSError(errno.ENOSPC, "full")
    with pytest.raises(ValueError, match="in handling it") as raised:
        _other_error(full)
    assert cause_of([raised.value]) is None
    raised.value.__cause__ = full
    assert cause_of([CourseError("ours"), raised.value]) is full


def _other_error(first: OSError) -> None:
    try:
        raise first
    except OSError:
        raise ValueError("in handling it") from None
