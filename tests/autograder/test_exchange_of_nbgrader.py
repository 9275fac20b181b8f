"""nbgrader's exchange: what is collected is a student's own, and no link brings anything else along."""

from __future__ import annotations

import logging
import os
import pwd
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from recorded import LESSON, new_course
from traitlets.config import Config

from autograder.gradebook.collecting import Collect, Refused, copy_plain
from autograder.gradebook.course import Course

COURSE = "tml"
NOBODY = 65534
STAMPS = ("2026-11-01 10:00:00 UTC", "2026-11-02 10:00:00 UTC")
Inbound = Callable[..., Path]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return new_course(tmp_path / "course")


@pytest.fixture
def inbound(tmp_path: Path) -> Inbound:
    """Makes a submission as nbgrader's `submit` leaves it, by the user of a name."""
    folder = tmp_path / "exchange" / COURSE / "inbound"
    folder.mkdir(parents=True)

    def submit(student: str, stamp: str = STAMPS[0], by: str = "", text: str = "own") -> Path:
        path = folder / f"{student}+{LESSON}+{stamp}+random"
        path.mkdir()
        (path / f"{LESSON}.ipynb").write_text(text)
        if by:
            os.chown(path, pwd.getpwnam(by).pw_uid, -1)
        return path

    return submit


def collect(course: Course, tmp_path: Path, **options: object) -> None:
    config = Config(course.config)
    config.Exchange.root = str(tmp_path / "exchange")
    directory = CourseDirectory(config=config, root=str(course.root), course_id=COURSE, assignment_id=LESSON)
    log = logging.getLogger("collect")
    config.ExchangeFactory.collect(coursedir=directory, config=config, log=log, **options).start()


def collected(course: Course) -> dict[str, str]:
    """Student -> what is in the notebook that was collected."""
    found = (course.root / "submitted").glob(f"*/{LESSON}/{LESSON}.ipynb")
    return {path.parts[-3]: path.read_text() for path in found}


def times(course: Course) -> dict[str, str]:
    """Student -> what `timestamp.txt` says that was collected."""
    found = (course.root / "submitted").glob(f"*/{LESSON}/timestamp.txt")
    return {path.parts[-3]: path.read_text() for path in found}


def now(ago: timedelta = timedelta()) -> str:
    """A time as `nbgrader submit` writes it into the folder's name, and into the file."""
    return f"{datetime.now(UTC) - ago:%Y-%m-%d %H:%M:%S.%f} UTC"


def test_the_course_collects_with_it(course: Course) -> None:
    assert course.config.ExchangeFactory.collect is Collect


def test_a_link_to_another_file_is_refused_and_told_and_the_others_are_collected(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    solved = tmp_path / "solved.ipynb"
    solved.write_text("the instructor's")
    inbound("ada")
    eve = inbound("eve") / f"{LESSON}.ipynb"
    eve.unlink()
    eve.symlink_to(solved)
    (inbound("fay") / "more").symlink_to(tmp_path)
    whole = inbound("gil")
    whole.rename(tmp_path / "gil")
    whole.symlink_to(tmp_path / "gil")
    os.mkfifo(inbound("hal") / "pipe")
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "own"}
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 4
    assert any(f"eve+{LESSON}" in line and "is a link or no plain file" in line for line in told)
    assert not list((course.root / "submitted").rglob(".collecting-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders that belong to others")
def test_a_folder_in_another_students_name_does_not_take_the_place_of_their_own(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbound("daemon", STAMPS[0], by="daemon")
    inbound("daemon", STAMPS[1], by="nobody", text="forged")
    inbound("bin", by="nobody", text="forged")
    collect(course, tmp_path)
    assert collected(course) == {"daemon": "own"}
    (told,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "it belongs to the user nobody, not to bin" in told
    assert "check_owner = False" in told
    collect(course, tmp_path, check_owner=False, update=True)
    assert collected(course) == {"daemon": "forged", "bin": "forged"}


def test_one_that_is_too_large_does_not_keep_others_from_being_collected(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    course.config.CourseDirectory.max_dir_size = 1
    inbound("ada")
    inbound("bob", text="x" * 2000)
    inbound("cyd")
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "own", "cyd": "own"}
    assert "max_dir_size" in caplog.text


def test_a_newer_submission_takes_the_place_of_an_older(
    course: Course, inbound: Inbound, tmp_path: Path
) -> None:
    inbound("ada", STAMPS[0], text="first")
    collect(course, tmp_path, check_owner=False)
    inbound("ada", STAMPS[1], text="second")
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "first"}
    collect(course, tmp_path, check_owner=False, update=True)
    assert collected(course) == {"ada": "second"}


def test_a_folder_whose_name_has_no_time_does_not_keep_others_from_being_collected(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody may make one."""
    for number, student in enumerate(("ada", "bob", "ada", "bob", "ada")):
        inbound(student, f"2026-11-0{number + 1} 10:00:00 UTC", text=str(number))
    for name in (f"evil+{LESSON}+x+y", f"a+b+{LESSON}+not a time+x", f"ada+{LESSON}+99999999999999+x"):
        (tmp_path / "exchange" / COURSE / "inbound" / name).mkdir()
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "4", "bob": "3"}, "the newest of each, in whatever order they lie"
    assert f"evil+{LESSON}+x+y was not collected: its name has no time" in caplog.text


def test_what_is_refused_leaves_what_was_collected_before(
    course: Course, inbound: Inbound, tmp_path: Path
) -> None:
    inbound("eve", STAMPS[0], text="first")
    collect(course, tmp_path, check_owner=False)
    (inbound("eve", STAMPS[1]) / "link").symlink_to(tmp_path)
    collect(course, tmp_path, check_owner=False, update=True)
    assert collected(course) == {"eve": "first"}


def test_folders_within_are_copied_and_times_kept(tmp_path: Path) -> None:
    (tmp_path / "src" / "figures" / "more").mkdir(parents=True)
    file = tmp_path / "src" / "figures" / "more" / "a.txt"
    file.write_text("a")
    os.utime(file, (1, 1))
    copy_plain(tmp_path / "src", tmp_path / "dest", 10)
    copied = tmp_path / "dest" / "figures" / "more" / "a.txt"
    assert (copied.read_text(), copied.stat().st_mtime) == ("a", 1)
    with pytest.raises(Refused):
        copy_plain(tmp_path / "src", tmp_path / "again", 0)


def test_a_file_that_grows_while_it_is_copied_ends(tmp_path: Path) -> None:
    """Files of the kernel's have more in them than their sizes say, as one that somebody writes on has."""
    with pytest.raises(Refused, match="more than 10 bytes"):
        copy_plain(Path("/proc/sysvipc"), tmp_path / "dest", 10)
    assert sum(path.stat().st_size for path in (tmp_path / "dest").iterdir()) == 11
    copy_plain(Path("/proc/sysvipc"), tmp_path / "again", 10_000)
    assert "shmid" in (tmp_path / "again" / "shm").read_text()


def test_a_folder_that_cannot_be_opened_is_not_passed_over() -> None:
    """Here one that its student has closed; root, whom nothing is closed to, is an ordinary user for it."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory(prefix="closed-") as name:  # not below a folder of root's alone
        closed = Path(name, "src", "figures")
        closed.mkdir(parents=True)
        for folder in (Path(name), closed.parent, closed):
            os.chown(folder, before or NOBODY, -1)
        closed.chmod(0o000)
        os.seteuid(before or NOBODY)
        try:
            with pytest.raises(PermissionError):
                copy_plain(closed.parent, None, 1000)
        finally:
            os.seteuid(before)
            closed.chmod(0o700)


def test_what_its_student_takes_away_again_does_not_keep_others_from_being_collected(course: Course) -> None:
    """Between nbgrader's look at the exchange and ours."""
    student = pwd.getpwuid(os.getuid()).pw_name
    (course.root / "here").mkdir()
    there, gone = ({"username": student, "filename": str(course.root / name)} for name in ("here", "gone"))
    taking = Collect.__new__(Collect)
    taking.check_owner, taking.inbound_path = True, str(course.root)
    assert taking.in_order([gone, there]) == [there, gone]


NO_TIMES = (b"yesterday", b"\xff\xfe", b"99999999999999999999", b"0001-01-01 00:00:00 +23:59", None)


@pytest.mark.parametrize("content", NO_TIMES)
def test_a_time_that_is_none_keeps_nobody_from_being_collected(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """Neither in the exchange nor among what was collected before; None is a folder of the file's name."""

    def write(folder: Path) -> None:
        (folder / "timestamp.txt").unlink(missing_ok=True)
        if content is None:
            (folder / "timestamp.txt").mkdir()
        else:
            (folder / "timestamp.txt").write_bytes(content)

    first, second = now(timedelta(seconds=9)), now()
    for student in ("ada", "bad", "zoe"):
        inbound(student, first)
    write(tmp_path / "exchange" / COURSE / "inbound" / f"bad+{LESSON}+{first}+random")
    collect(course, tmp_path, check_owner=False)
    assert times(course) == dict.fromkeys(("ada", "bad", "zoe"), first)
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "its timestamp.txt holds no time" in told
    write(course.root / "submitted" / "bad" / LESSON)
    for student in ("ada", "bad", "late", "zoe"):
        inbound(student, second, text="second")
    collect(course, tmp_path, check_owner=False, update=True)
    assert collected(course) == dict.fromkeys(("ada", "bad", "late", "zoe"), "second")
    assert times(course) == dict.fromkeys(("ada", "bad", "late", "zoe"), second)


def test_the_time_is_that_of_the_folders_name_and_another_in_it_is_told(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stamp = now()
    (inbound("ada", stamp) / "timestamp.txt").write_text(stamp)
    (inbound("eve", stamp) / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
    collect(course, tmp_path, check_owner=False)
    assert times(course) == {"ada": stamp, "eve": stamp}
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"eve+{LESSON}" in told
    assert "its timestamp.txt says 2020-01-01 00:00:00. The name's time was taken" in told


@pytest.mark.parametrize("where", ["folder", "file"])
def test_what_was_changed_after_the_time_in_its_name_is_told(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The folder that is made later, or the notebook that is written over in it: the kernel knows."""
    inbound("ada", now(timedelta(minutes=4)))
    late = inbound("eve", now(timedelta(minutes=6)))
    long_ago = (1e9, 1e9)
    os.utime(late / f"{LESSON}.ipynb", long_ago)
    if where == "folder":
        os.utime(late, long_ago)
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "own", "eve": "own"}, "a person decides"
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"eve+{LESSON}" in told
    assert f"something in it was changed at {now()[:10]}" in told


@pytest.mark.parametrize("stamp", ["10", "monday", "2026-11-01", "2026-11-01 10:00:00 CEST", "1." * 40])
def test_a_name_with_what_is_taken_for_a_time_elsewhere_is_refused(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture, stamp: str
) -> None:
    inbound("ada", now())
    inbound("eve", stamp)
    collect(course, tmp_path, check_owner=False)
    assert collected(course) == {"ada": "own"}
    assert "its name has no time of handing in" in caplog.text


def test_a_name_that_is_no_students_id_is_refused_and_no_terminal_obeys_it(
    course: Course, inbound: Inbound, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    course.config.CourseDirectory.max_file_size = 1
    for student in ("\x1b]0;pwned\x07eve", "\x1b[2Jada", " ada", "{ada}"):
        inbound(student, now())
    (inbound("ada", now()) / "\x1b[2Jlarge.txt").write_text("x" * 2000)
    collect(course, tmp_path, check_owner=False)
    assert os.listdir(course.root / "submitted") == ["ada"]
    assert caplog.text.count("was not collected: no student's id: ") == 4
    assert "rename the folder under submitted/" not in caplog.text, "there is none"
    assert "Ignoring file too large" in caplog.text
    assert caplog.text.replace("\n", "").isprintable()


def test_formgraders_list_and_nbgraders_steps_take_what_is_no_time_for_none(course: Course) -> None:
    """One student's file would else keep the list of all from being shown."""
    folder = course.root / "submitted" / "bad" / LESSON
    folder.mkdir(parents=True)
    course = Course(course.root)  # as a server reads the configuration, with these parts of nbgrader loaded
    lists = NbGraderAPI(coursedir=course.directory)
    for text, at in (("1." * 500_000, None), ("monday", None), ("2026-11-01 10:00:00 UTC", 2026)):
        (folder / "timestamp.txt").write_text(text)
        found = lists.get_submitted_timestamp(LESSON, "bad"), course.directory.get_existing_timestamp(folder)
        assert [one and one.year for one in found] == [at, at]
