"""What was handed in and cannot be graded is told, with what to do: nobody is passed over in silence."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import hand_in, notebook
from nbgrader.api import Gradebook
from recorded import LESSON, new_course

from autograder.batch.submissions import grade_lesson, grade_one, merge_if_needed
from autograder.grade.grading import Conditions
from autograder.grade.harness import Graded, without_points
from autograder.grade.records import load_all, save
from autograder.grade.reference import REPOSITORY
from autograder.gradebook.course import (
    CONFIG_FILE,
    Course,
    Submitted,
    init_course,
    put_in_place,
    without_links,
)
from autograder.gradebook.links import check_no_links
from autograder.gradebook.listing import as_csv, listing_of
from autograder.gradebook.misplaced import not_gradable
from autograder.gradebook.problems import CourseError, student_id_problem
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry

pytestmark = pytest.mark.days()

NOBODY = 65534
CONDITIONS = Conditions(LESSON, 3, Unconfined())
FILES = {
    f"zip/{LESSON}/{LESSON}.zip": f"no notebook: expected a file *.ipynb in {LESSON}/, found {LESSON}.zip",
    f"upper/{LESSON}/{LESSON}.IPYNB": f"found {LESSON}.IPYNB",
    f"text/{LESSON}/{LESSON}.ipynb.txt": f"found {LESSON}.ipynb.txt",
    f"flat/{LESSON}.ipynb": f"expected a folder {LESSON}/ with the notebook in it, found {LESSON}.ipynb",
    "case/00-Collectives/00_collectives.ipynb": f"expected a folder {LESSON}/",
    "number/00/00_collectives.ipynb": f"expected a folder {LESSON}/",
    "one/0/00_collectives.ipynb": f"expected a folder {LESSON}/",
    f"again/{LESSON} (1)/{LESSON}.ipynb": f"expected a folder {LESSON}/",
    f"mine/my {LESSON}.ipynb": f"expected a folder {LESSON}/",
    f"other/homework/{LESSON}.ipynb": f"expected a folder {LESSON}/ with the notebook in it, found homework",
    f"folder/{LESSON}/{LESSON}.ipynb/x": f"found {LESSON}.ipynb/, a folder",
    f"both/{LESSON}/{LESSON}.ipynb/x": f"{LESSON}.ipynb is a folder, where a notebook's file belongs: take",
    f"part/{LESSON}/.{LESSON}.ipynb.part/x": f".{LESSON}.ipynb.part is a folder, where a notebook's file",
    f"square/²/{LESSON}.ipynb": f"expected a folder {LESSON}/",
    f"{LESSON}.ipynb": f"move it to submitted/STUDENT/{LESSON}/",
}


@pytest.mark.parametrize("path", FILES)
def test_work_in_another_place_or_form_is_named(tmp_path: Path, path: str) -> None:
    file = tmp_path / "submitted" / path
    file.parent.mkdir(parents=True)
    file.write_text("x")
    ((who, why),) = not_gradable(tmp_path, LESSON).items()
    assert who == path.partition("/")[0]
    assert FILES[path] in why


@pytest.mark.parametrize("name", [LESSON, "00.ipynb"])
def test_what_is_neither_file_nor_folder_is_not_to_be_moved(tmp_path: Path, name: str) -> None:
    (tmp_path / "submitted" / "ada").mkdir(parents=True)
    os.mkfifo(tmp_path / "submitted" / "ada" / name)
    (why,) = not_gradable(tmp_path, LESSON).values()
    assert why.endswith(f"found {name}, which is no file; take it away")


@pytest.mark.parametrize("name", [f"{LESSON}.ipynb", f".{LESSON}.ipynb.part"])
def test_a_folder_where_a_copy_belongs_is_told_and_nothing_is_graded(tmp_path: Path, name: str) -> None:
    """Unless there is a notebook of the right name, of which no copy is made."""
    course = new_course(tmp_path)
    work = hand_in(tmp_path, "ada", notebook(), "mine", LESSON).parent
    (work / name).mkdir()
    run = grade_lesson(course, CONDITIONS, 1)
    assert (run.graded, list(run.failed)) == ([], ["ada"])
    assert run.failed["ada"].startswith(f"{name} is a folder, where a notebook's file belongs")
    assert f"found {name}/, a folder, mine.ipynb" in run.failed["ada"]
    if name != f"{LESSON}.ipynb":
        hand_in(tmp_path, "ada", notebook(), lesson=LESSON)
        assert not_gradable(tmp_path, LESSON) == {}
        assert grade_lesson(course, CONDITIONS, 1).graded == ["ada"]


def test_nothing_of_a_students_is_put_beside_the_feedback(tmp_path: Path) -> None:
    """But what the exchange reads there; and what has the page's own name keeps it from nobody."""
    course = new_course(tmp_path)
    for student in ("ada", "eve"):
        work = hand_in(tmp_path, student, notebook(), lesson=LESSON).parent
        (work / "evil.html").write_text("<script>alert(1)</script>")
        (work / "timestamp.txt").write_text("2026-12-01 23:59:00 UTC")
        (work / f"{LESSON}.html").mkdir()
        (work / f"{LESSON}.html" / "x").write_text("x")
    run = grade_lesson(course, CONDITIONS, 1)
    assert (run.graded, run.failed) == (["ada", "eve"], {})
    folder = tmp_path / "feedback" / "ada" / LESSON
    assert sorted(os.listdir(folder)) == [f"{LESSON}.html", "timestamp.txt"]
    assert "script>alert" not in (folder / f"{LESSON}.html").read_text()
    of_nbgrader = [sys.executable, "-m", "nbgrader", "generate_feedback", LESSON, "--force"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(of_nbgrader, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert sorted(os.listdir(folder)) == [f"{LESSON}.html", "timestamp.txt"]


def test_an_empty_folder_is_named_and_another_lesson_is_not(tmp_path: Path) -> None:
    hand_in(tmp_path, "ada", notebook(), lesson="01_memory_math")
    hand_in(tmp_path, "bob", notebook(), lesson=LESSON)
    (tmp_path / "submitted" / "cyd" / LESSON).mkdir(parents=True)
    assert list(not_gradable(tmp_path, LESSON)) == ["cyd"]
    assert not_gradable(tmp_path / "empty", LESSON) == {}


def test_each_name_that_is_none_is_told(tmp_path: Path) -> None:
    names = ["a:b*1", "a:b*2", " ada", "x" * 200, os.fsdecode(b"J\xf6rg")]
    for name in names:
        (tmp_path / "submitted" / name / LESSON).mkdir(parents=True)
    told = not_gradable(tmp_path, LESSON)
    assert set(told) == {repr(name) for name in names}
    assert all(why.startswith("no student's id: ") for why in told.values())


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """This process is an ordinary user's, for whom a folder can be closed."""
    before = os.geteuid()
    os.seteuid(before or NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder of that user's, which none above it closes."""
    with tempfile.TemporaryDirectory(prefix="nobodys-") as name:
        os.chown(name, os.geteuid() or NOBODY, -1)
        yield Path(name)


@pytest.mark.parametrize("closed", ["ada", f"ada/{LESSON}"])
@pytest.mark.parametrize("mode", [0o000, 0o600])
def test_a_folder_that_cannot_be_read_is_told_and_the_others_are_graded(
    nobodys: Path, closed: str, mode: int
) -> None:
    for student in ("ada", "bob"):
        hand_in(nobodys, student, notebook(), lesson=LESSON)
    init_course(nobodys)
    course, folder = Course(nobodys), nobodys / "submitted" / closed
    folder.chmod(mode)
    os.chown(folder, os.geteuid() or NOBODY, -1)
    with without_rights():
        found = [submitted.student for submitted in course.submissions(LESSON)]
        told = not_gradable(nobodys, LESSON)
    folder.chmod(0o700)
    assert found == ["bob"]
    ((who, why),) = told.items()
    assert (who, "(Permission denied): let who grades read it" in why) == ("ada", True)


@pytest.mark.parametrize(
    ("name", "why"),
    [("ada ", "a space"), ("x" * 129, "129 characters"), ("a*", "* ?"), (".a", "a dot"), ("a\n", "printed")],
)
def test_why_a_name_is_none(name: str, why: str) -> None:
    assert why in student_id_problem(name)


def test_what_macos_keeps_beside_a_file_is_not_graded(tmp_path: Path) -> None:
    """Nor is it named among a student's other notebooks; alone it is none."""
    work = hand_in(tmp_path, "ada", notebook("x = 1"), "mine", LESSON)
    kept = work.with_name("._mine.ipynb")
    kept.write_bytes(b"\0\5\x16\7")
    os.utime(kept, (2**31, 2**31))  # the newest
    init_course(tmp_path)
    (found,) = Course(tmp_path).submissions(LESSON)
    assert (found.notebook.name, found.others) == ("mine.ipynb", ())
    work.unlink()
    assert list(Course(tmp_path).submissions(LESSON)) == []
    assert "no notebook" in not_gradable(tmp_path, LESSON)["ada"]


def test_files_whose_names_are_no_text_are_graded(tmp_path: Path) -> None:
    """As they come out of an archive that was made on another system."""
    course = new_course(tmp_path)
    folder = hand_in(tmp_path, "ada", notebook(), "old", LESSON).parent
    os.rename(folder / "old.ipynb", os.path.join(os.fsencode(folder), b"\xdcbung.ipynb"))
    hand_in(tmp_path, "bob", notebook(), lesson=LESSON)
    others = os.fsencode(tmp_path / "submitted" / "bob" / LESSON)
    for name in (b"alt\xe9.ipynb", b"data\xe9.csv"):
        Path(os.fsdecode(os.path.join(others, name))).write_text("{}")
    run = grade_lesson(course, CONDITIONS, 1)
    assert run.graded == ["ada", "bob"]
    assert run.failed == {}
    records = load_all(tmp_path, LESSON)
    assert [made.notebook for made in records] == ["\\udcdcbung.ipynb", f"{LESSON}.ipynb"]
    renamed = f"graded: \\udcdcbung.ipynb, as there was no {LESSON}.ipynb"
    assert records[0].notes == [renamed]
    assert records[1].notes == ["not graded: alt\\udce9.ipynb"]
    as_csv(listing_of(course, LESSON)).encode()
    assert grade_lesson(course, CONDITIONS, 1).kept == ["ada", "bob"]


def test_what_is_graded_again_while_it_is_merged_keeps_its_name(tmp_path: Path) -> None:
    """What a host could not grade is, then, under the name that nbgrader looks for. That stays a copy, and
    what the student hands in later under a name of their own is graded.
    """
    course = new_course(tmp_path)
    mine = hand_in(tmp_path, "ada", notebook("x = 1"), "mine", LESSON)
    grade_one(tmp_path, Submitted("ada", mine), CONDITIONS)
    (made,) = load_all(tmp_path, LESSON)
    for name in made.graded:
        made.graded[name] = Graded(
            without_points(registry.exercise(name), "could_not_be_graded", "no sandbox")
        )
    save(tmp_path, made)
    merge_if_needed(course, LESSON, Submitted("ada", mine), feedback=False)
    (again,) = load_all(tmp_path, LESSON)
    assert not again.ungraded
    assert (again.notebook, again.notes) == ("mine.ipynb", made.notes)
    hand_in(tmp_path, "ada", notebook("x = 2"), "mine", LESSON)
    (found,) = course.submissions(LESSON)
    assert (found.notebook.name, found.others) == ("mine.ipynb", ())


def test_a_copy_that_cannot_be_finished_does_not_pass_for_the_work(tmp_path: Path) -> None:
    """On a disk that is full, as here above a file's size: what the student handed in is still graded."""
    course = new_course(tmp_path)
    mine = hand_in(tmp_path, "ada", notebook("#" * 100_000), "mine", LESSON)
    grade_one(tmp_path, Submitted("ada", mine), CONDITIONS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            put_in_place(Submitted("ada", mine), LESSON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(mine.parent) == ["mine.ipynb"]
    (found,) = course.submissions(LESSON)
    assert (found.notebook.name, found.others) == ("mine.ipynb", ())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("time", [b"yesterday evening", b"\xff\xfe", b"1." * 500_000, None])
def test_a_time_that_is_none_is_told(tmp_path: Path, time: bytes | None) -> None:
    """With the file's name; with the time put right, the points are in the gradebook."""
    course = new_course(tmp_path)
    path = hand_in(tmp_path, "ada", notebook(), lesson=LESSON).with_name("timestamp.txt")
    if time is None:
        path.mkdir()
    else:
        path.write_bytes(time)
    hand_in(tmp_path, "bob", notebook(), lesson=LESSON)
    run = grade_lesson(course, CONDITIONS, 1, feedback=False)
    assert run.graded == ["bob"]
    assert f"{path}: expected a time such as 2026-12-01 23:59:00 UTC" in run.failed["ada"]
    if time is None:
        path.rmdir()
    path.write_text("2026-12-01 23:59:00 UTC")
    assert grade_lesson(course, CONDITIONS, 1, feedback=False).failed == {}
    with Gradebook(course.db_url) as gradebook:
        assert gradebook.find_submission(LESSON, "ada").timestamp.year == 2026


def test_a_time_is_not_read_through_a_link_or_from_a_pipe(tmp_path: Path) -> None:
    course = new_course(tmp_path)
    for student in ("ada", "bob"):
        hand_in(tmp_path, student, notebook(), lesson=LESSON)
    (tmp_path / "submitted" / "ada" / LESSON / "timestamp.txt").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "submitted" / "bob" / LESSON / "timestamp.txt")
    run = grade_lesson(course, CONDITIONS, 1, feedback=False)
    assert run.graded == ["ada", "bob"]
    assert run.failed == {}
    with Gradebook(course.db_url) as gradebook:
        assert [gradebook.find_submission(LESSON, one).timestamp for one in run.graded] == [None, None]


def test_no_link_is_followed_where_it_was_not_taken_out_in_time(tmp_path: Path) -> None:
    """nbgrader goes on when its hook fails, as in a folder that cannot be written to."""
    course = new_course(tmp_path)
    with (tmp_path / CONFIG_FILE).open("a") as config:
        config.write("c.Autograde.pre_convert_hook = lambda **about: 1 / 0\n")
    course = Course(tmp_path)
    path = hand_in(tmp_path, "ada", notebook(), lesson=LESSON)
    (submitted,) = course.submissions(LESSON)
    grade_one(tmp_path, submitted, CONDITIONS)
    (path.parent / "data").mkdir()
    (path.parent / "data" / "notes.txt").symlink_to(tmp_path / "gradebook.db")
    with pytest.raises(CourseError, match=r"links in a submission .*\(data/notes\.txt\)"):
        course.merge(LESSON, "ada")
    assert list(tmp_path.glob("autograded/ada/**/*.*")) == []
    course.merge(LESSON, "ada")
    assert [found.name for found in tmp_path.glob("autograded/ada/**/*.*")] == [f"{LESSON}.ipynb"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"PK\x03\x04 and so on", "it is a zip; take the notebook out of it, and submit again"),
        (b'{"nbformat": 3, "worksheets": [{"cells": []}]}', "open it in JupyterLab, save it"),
    ],
)
def test_a_file_that_holds_a_notebook_is_told_from_one_that_is_none(
    tmp_path: Path, data: bytes, told: str
) -> None:
    hand_in(tmp_path, "ada", data, lesson=LESSON)
    (submitted,) = Course(tmp_path).submissions(LESSON)
    grade_one(tmp_path, submitted, CONDITIONS)
    (made,) = load_all(tmp_path, LESSON)
    assert told in made.problem
    assert made.points == 0


def test_a_folder_that_is_a_link_is_nobodys_work(tmp_path: Path) -> None:
    """Neither the solution nor another student's work is taken for it, and nothing is changed there."""
    course = new_course(tmp_path)
    hand_in(tmp_path, "bob", notebook("bobs_own = 1"), lesson=LESSON)
    note = tmp_path / "submitted" / "bob" / LESSON / "note"
    note.symlink_to("nowhere")
    for student, to in {"eve": f"../../source/{LESSON}", "mal": f"../bob/{LESSON}", "dan": "gone"}.items():
        (tmp_path / "submitted" / student).mkdir()
        (tmp_path / "submitted" / student / LESSON).symlink_to(to)
    (tmp_path / "submitted" / "sue").symlink_to("bob")
    told = not_gradable(tmp_path, LESSON)
    assert set(told) == {"dan", "eve", "mal", "sue"}
    assert told["sue"].startswith("the student's folder is a symbolic link")
    assert told["eve"].startswith(f"{LESSON}/ is a symbolic link")
    assert not_gradable(tmp_path, "01_memory_math") == {}
    assert [submitted.student for submitted in course.submissions(LESSON)] == ["bob"]
    for student in ("eve", "mal", "sue"):
        folder = tmp_path / "submitted" / student / LESSON
        with pytest.raises(CourseError, match="symbolic link"):
            merge_if_needed(course, LESSON, Submitted(student, folder / f"{LESSON}.ipynb"), feedback=True)
        with pytest.raises(CourseError, match="symbolic link"):
            course.merge(LESSON, student)
        with pytest.raises(CourseError, match="symbolic link"):
            without_links(LESSON, student, [str(folder / f"{LESSON}.ipynb")])
        with pytest.raises(CourseError, match="symbolic link"):
            check_no_links(folder)
    assert note.is_symlink()


def test_folders_that_lie_deep_in_one_another_are_their_students_problem(tmp_path: Path) -> None:
    course = new_course(tmp_path)
    for student in ("ada", "deep", "eve"):
        hand_in(tmp_path, student, notebook(), lesson=LESSON)
    with contextlib.chdir(tmp_path / "submitted" / "deep" / LESSON):
        for _ in range(1500):
            os.mkdir("a")
            os.chdir("a")
    try:
        run = grade_lesson(course, CONDITIONS, 1, feedback=False)
        assert (run.graded, list(run.failed)) == (["ada", "eve"], ["deep"])
        assert "more than 50 folders lie in one another" in run.failed["deep"]
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "submitted" / "deep"], check=True)


@pytest.mark.parametrize("fault", [RecursionError("too deep"), MemoryError(), OverflowError("x" * 10_000)])
def test_whatever_goes_wrong_with_one_is_not_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    course = new_course(tmp_path)
    for student in ("ada", "bob"):
        hand_in(tmp_path, student, notebook(), lesson=LESSON)
    merge = Course.merge

    def failing(course: Course, lesson: str, student: str) -> None:
        if student == "ada":
            raise fault
        merge(course, lesson, student)

    monkeypatch.setattr(Course, "merge", failing)
    run = grade_lesson(course, CONDITIONS, 1, feedback=False)
    assert (run.graded, list(run.failed)) == (["bob"], ["ada"])
    assert f"a fault of the grader, please report it: {type(fault).__name__}" in run.failed["ada"]
    assert "in failing" in run.failed["ada"]
