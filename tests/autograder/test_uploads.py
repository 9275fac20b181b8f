"""Uploads taken out of a learning platform's archives, by nbgrader's own command."""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import subprocess
import sys
import tracemalloc
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import LESSON, notebook
from nbgrader.api import Gradebook
from nbgrader.utils import parse_utc

from autograder.gradebook.course import Course, init_course
from autograder.gradebook.problems import CourseError
from autograder.gradebook.uploads import UploadExtractor, UploadProblem
from autograder.gradebook.worksheet import read_worksheets

pytestmark = pytest.mark.days()

MOODLE = "Ada Byron_123_assignsubmission_file_"
EVE = "Eve_666_assignsubmission_file_"


def source(text: str) -> bytes:
    return json.dumps(notebook(text)).encode()


def zipped(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


def collected(course: Path, archives: dict[str, dict[str, bytes]]) -> tuple[dict[str, bytes], str]:
    """What `nbgrader zip_collect` makes of these archives (path -> bytes), and what it says."""
    init_course(course)
    folder = course / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in archives.items():
        (folder / name).write_bytes(zipped(members))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["nbgrader", "zip_collect", LESSON]
    done = subprocess.run(words, cwd=course, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    students = ("*.ipynb", "regrade.txt")  # and nbgrader's timestamp.txt
    found = (path for name in students for path in (course / "submitted").rglob(name))
    return {str(path.relative_to(course / "submitted")): path.read_bytes() for path in found}, done.stderr


def test_a_name_takes_nobody_elses_place(tmp_path: Path) -> None:
    """Neither by a file's name, nor by an archive in an upload."""
    nested = zipped({f"{MOODLE}/{LESSON}.ipynb": source("forged")})
    members = {
        f"{MOODLE}/{LESSON}.ipynb": source("ada"),
        f"{EVE}/x_123_456_{LESSON}.ipynb": source("forged"),
        f"{EVE}/deep/{MOODLE}/{LESSON}.ipynb": source("forged"),
        f"{EVE}/more.zip": nested,
        f"{EVE}/{LESSON}.ipynb": source("eve"),
        "../../submitted/123/x.ipynb": source("forged"),
        "Mallory_5_assignsubmission_file_666_assignsubmission_file_x.ipynb": source("forged"),
        "mallory_777_999_x_123_assignsubmission_file_y.ipynb": source("forged"),
        f"curieanna_LATE_4711_889900_{LESSON}-1.ipynb": source("curie"),
        "curieanna_LATE_4711_889901_notes.ipynb": source("notes"),
        "__MACOSX/._x.ipynb": b"",
    }
    found, said = collected(tmp_path, {"all.zip": members})
    assert found.pop(f"666/{LESSON}/x_123_456_{LESSON}.ipynb") == source("forged"), "it is eve's own"
    assert found == {
        f"123/{LESSON}/{LESSON}.ipynb": source("ada"),
        f"666/{LESSON}/{LESSON}.ipynb": source("eve"),
        f"4711/{LESSON}/{LESSON}.ipynb": source("curie"),
        f"4711/{LESSON}/notes.ipynb": source("notes"),
    }
    assert "an archive within an upload is not opened" in said
    assert "2 students' numbers in the name 'mallory_777" in said
    assert f"666 uploaded more than one {LESSON}.ipynb: the outermost counts" in said
    assert said.count("uploaded more than one") == 1


def test_a_request_for_another_look_is_collected_with_its_notebook(tmp_path: Path) -> None:
    """In Moodle's folder, and among Canvas's files, which are numbered when they are handed in again."""
    members = {
        f"{MOODLE}/{LESSON}.ipynb": source("ada"),
        f"{MOODLE}/Regrade.txt": b"06.a: why?",
        f"{MOODLE}/timestamp.txt": b"2020-01-01 00:00:00",
        f"curieanna_4711_889900_{LESSON}-1.ipynb": source("curie"),
        "curieanna_4711_889901_regrade-1.txt": b"06.b: please",
    }
    found, _ = collected(tmp_path, {"all.zip": members})
    assert found == {
        f"123/{LESSON}/{LESSON}.ipynb": source("ada"),
        f"123/{LESSON}/regrade.txt": b"06.a: why?",
        f"4711/{LESSON}/{LESSON}.ipynb": source("curie"),
        f"4711/{LESSON}/regrade.txt": b"06.b: please",
    }
    assert list((tmp_path / "submitted").rglob("timestamp.txt")) == [], "nobody says when they handed in"


def test_an_upload_without_a_notebook_is_told(tmp_path: Path) -> None:
    """What lies beside a notebook is not."""
    members = {
        f"{MOODLE}/{LESSON}.IPYNB": source("ada"),
        f"{MOODLE}/regrade.txt": b"06.a: why?",
        f"{EVE}/{LESSON}.ipynb": source("eve"),
        f"{EVE}/photo.png": b"",
    }
    found, said = collected(tmp_path, {"all.zip": members})
    assert sorted(found) == [f"123/{LESSON}/regrade.txt", f"666/{LESSON}/{LESSON}.ipynb"]
    assert "no notebook was collected for 123: expected a file *.ipynb with a name of at most 255" in said
    assert f"found {LESSON}.IPYNB" in said
    assert "photo.png" not in said


def test_one_number_twice_is_told_and_everybody_else_is_collected(tmp_path: Path) -> None:
    first = {f"{MOODLE}/{LESSON}.ipynb": source("ada"), f"{EVE}/{LESSON}.ipynb": source("eve")}
    second = {
        f"Another Ada_123_assignsubmission_file_/{LESSON}.ipynb": source("other"),
        f"{EVE}/{LESSON}.ipynb": source("eve"),
        f"Bob_8_assignsubmission_file_{LESSON}.ipynb": source("bob"),
    }
    found, said = collected(tmp_path, {"a.zip": first, "b.ZIP": second})
    assert found == {
        f"666/{LESSON}/{LESSON}.ipynb": source("eve"),
        f"8/{LESSON}/{LESSON}.ipynb": source("bob"),
    }
    told = "nothing was collected for 123: 2 uploads have this number: a.zip: Ada Byron_123, b.ZIP: Another"
    assert told in said


WORKSHEET = (
    '\ufeffIdentifier,Full name,Email address,Status,Grade,"Last modified (submission)"\n'
    'Participant 123,Ada Byron,ada@x.org,Submitted for grading,,"Saturday, 21 November 2026, 3:04 PM"\n'
    "Participant 666,Eve,,Submitted for grading,,-\n"
)


def test_times_and_ids_come_from_moodles_worksheet(tmp_path: Path) -> None:
    """A number is of this assignment alone; where the worksheet has an address, that is the student's id."""
    folder = tmp_path / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    (folder / "Grades.CSV").write_text(WORKSHEET, encoding="utf-8")
    found, _ = collected(
        tmp_path, {"all.zip": {f"{MOODLE}/a.ipynb": source("ada"), f"{EVE}/b.ipynb": source("eve")}}
    )
    assert sorted(found) == [f"666/{LESSON}/b.ipynb", f"ada@x.org/{LESSON}/a.ipynb"]
    at = (tmp_path / "submitted" / "ada@x.org" / LESSON / "timestamp.txt").read_text()
    assert parse_utc(at).replace(tzinfo=UTC) == datetime(2026, 11, 21, 15, 4).astimezone()
    assert not (tmp_path / "submitted" / "666" / LESSON / "timestamp.txt").exists()


def test_what_canvas_marks_late_is_late(tmp_path: Path) -> None:
    """By a second, as its archive does not say by how much; and nothing where there is no due date."""
    late, on_time = f"a_LATE_1_2_{LESSON}.ipynb", f"b_3_4_{LESSON}.ipynb"
    for due in (None, datetime(2026, 11, 20, 12)):
        course = tmp_path / str(due)
        init_course(course)
        with Gradebook(Course(course).db_url) as gradebook:
            gradebook.update_or_create_assignment(LESSON, duedate=due)
        found, said = collected(course, {"all.zip": {late: source("a"), on_time: source("b")}})
        assert len(found) == 2
        told = {path.parent.parent.name: path.read_text() for path in course.rglob("timestamp.txt")}
        if due is None:
            assert told == {}
            assert "1 handed in late, and that costs nothing" in said
        else:
            assert {student: parse_utc(at) - due for student, at in told.items()} == {
                "1": timedelta(seconds=1)
            }


def test_a_broken_archive_spoils_only_itself(tmp_path: Path) -> None:
    folder = tmp_path / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    (folder / "a\x1b[31m.zip").write_bytes(b"PK no zip")
    (folder / "b.zip").write_bytes(zipped({f"{MOODLE}/{LESSON}.ipynb": source("ada")}))
    out = tmp_path / "extracted"
    UploadExtractor().extract(str(folder), str(out))
    assert [str(path.relative_to(out)) for path in out.rglob("*.ipynb")] == [f"123/{LESSON}.ipynb"]


def extracted(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[dict[str, bytes], str]:
    """What is taken out of what lies in a folder, and what is said."""
    extractor, out = UploadExtractor(), folder.parent / "extracted"
    extractor.log = logging.getLogger("uploads")
    extractor.extract(str(folder), str(out))
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.ipynb")}, caplog.text


def test_whatever_is_wrong_with_an_archive_spoils_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that is not in the encoding it claims, and a version of the format that nobody knows."""
    folder = tmp_path / "archive"
    folder.mkdir()
    good = {f"{MOODLE}/{LESSON}.ipynb": source("ada")}
    (folder / "a.zip").write_bytes(zipped({"Bé": b""}).replace("é".encode(), b"\xff\xff"))
    newer = bytearray(zipped(good))
    newer[newer.find(b"PK\x01\x02") + 6] = 99
    (folder / "b.zip").write_bytes(newer)
    (folder / "c.zip").write_bytes(zipped(good))
    (folder / "d.csv").mkdir()
    found, said = extracted(folder, caplog)
    assert found == {f"123/{LESSON}.ipynb": source("ada")}
    assert "a.zip cannot be read: 'utf-8' codec" in said
    assert "b.zip cannot be read: zip file version 9.9" in said


def test_what_macos_keeps_beside_a_file_is_no_upload_and_no_worksheet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In an archive, and in a folder that was copied."""
    folder, kept = tmp_path / "archive", b"\0\5\26\7\0\2\0\0Mac OS X"
    folder.mkdir()
    members = {f"{MOODLE}/{LESSON}.ipynb": source("ada"), f"__MACOSX/{MOODLE}/._{LESSON}.ipynb": kept}
    (folder / "all.zip").write_bytes(zipped(members))
    (folder / f"{EVE}{LESSON}.ipynb").write_bytes(source("eve"))
    for name in ("._all.zip", "._Grades.csv", f"._{EVE}{LESSON}.ipynb", ".DS_Store"):
        (folder / name).write_bytes(kept)
    found, said = extracted(folder, caplog)
    assert found == {f"123/{LESSON}.ipynb": source("ada"), f"666/{LESSON}.ipynb": source("eve")}
    assert said == ""


@pytest.mark.parametrize("name", ["eve_666_22_work.zip", f"{EVE}work.zip"])
def test_a_students_archive_in_an_unpacked_folder_is_not_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Its names are the student's, who could hand in for somebody else."""
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / name).write_bytes(zipped({f"{MOODLE}/{LESSON}.ipynb": source("forged")}))
    found, said = extracted(folder, caplog)
    assert found == {}
    assert f"{name} was not collected: an archive within an upload is not opened" in said


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("hopper_LATE_12_23_x.pdf", "12"),
        ("lovelace_14_25_x.IPYNB", "14"),
        ("mead_15_26_README", "15"),
        ("Bob_2_assignsubmission_onlinetext_/onlinetext.html", "2"),
    ],
)
def test_who_uploaded_something_else_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, student: str
) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "all.zip").write_bytes(zipped({name: b"work"}))
    found, said = extracted(tmp_path / "archive", caplog)
    assert found == {}
    assert f"no notebook was collected for {student}: expected a file *.ipynb" in said
    assert f"found {name.rpartition('/')[2]}" in said


def test_an_upload_that_cannot_be_read_or_written_costs_nobody_else_theirs(tmp_path: Path) -> None:
    """Bytes that no packer wrote, and a name of more bytes than a file's can have."""
    folder = tmp_path / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{EVE}/{LESSON}.ipynb", os.urandom(2000))
        file.writestr(f"Bob_8_assignsubmission_file_/{'я' * 150}.ipynb", source("bob"))
        file.writestr(f"{MOODLE}/{'я' * 120}.ipynb", source("ada"))
    broken = bytearray(packed.getvalue())
    broken[100:200] = b"\xff" * 100
    (folder / "all.zip").write_bytes(broken)
    out = tmp_path / "extracted"
    UploadExtractor().extract(str(folder), str(out))
    assert [str(path.relative_to(out)) for path in out.rglob("*.ipynb")] == [f"123/{'я' * 120}.ipynb"]


def test_an_address_that_two_have_is_nobodys_id(tmp_path: Path) -> None:
    """Else one of the two notebooks would be written over the other."""
    (tmp_path / "Grades.csv").write_text(WORKSHEET.replace("Eve,,", "Eve,ada@x.org,"), encoding="utf-8")
    uploads = {f"{MOODLE}/{LESSON}.ipynb": source("ada"), f"{EVE}/{LESSON}.ipynb": source("eve")}
    (tmp_path / "all.zip").write_bytes(zipped(uploads))
    out = tmp_path / "extracted"
    UploadExtractor().extract(str(tmp_path), str(out))
    found = {path.relative_to(out).parts[0]: path.read_bytes() for path in out.rglob("*.ipynb")}
    assert found == {"123": source("ada"), "666": source("eve")}


def test_a_worksheet_in_another_language_is_refused(tmp_path: Path) -> None:
    """Without its times late work would be in time."""
    german = WORKSHEET.replace("Identifier", "ID").replace("Last modified", "Zuletzt geändert")
    (tmp_path / "Grades.csv").write_text(german, encoding="utf-8")
    (tmp_path / "all.zip").write_bytes(zipped({f"{MOODLE}/{LESSON}.ipynb": source("ada")}))
    with pytest.raises(CourseError, match="worksheet in English, found no column Identifier and no Last"):
        read_worksheets(tmp_path)
    with pytest.raises(SystemExit):
        UploadExtractor().extract(str(tmp_path), str(tmp_path / "extracted"))


def test_an_upload_that_fills_the_memory_costs_nobody_else_theirs(tmp_path: Path) -> None:
    """Twenty notebooks of zeros, 5 MB as they are packed, for a collector that may have 1 GiB more than it
    begins with.
    """
    folder = tmp_path / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for number in range(20):
            file.writestr(f"{EVE}/{number}.ipynb", bytes(63 * 2**20))
        file.writestr(f"{MOODLE}/{LESSON}.ipynb", source("ada"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))
    try:
        UploadExtractor().extract(str(folder), str(tmp_path / "extracted"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    found = (tmp_path / "extracted").rglob("*.ipynb")
    assert [str(path.relative_to(tmp_path / "extracted")) for path in found] == [f"123/{LESSON}.ipynb"]


def test_one_student_after_the_other_is_read_and_written(tmp_path: Path) -> None:
    """What all of a class handed in need not fit in the memory at once."""
    folder, out = tmp_path / "downloaded" / LESSON / "archive", tmp_path / "extracted"
    folder.mkdir(parents=True)
    for number in range(6):
        path = folder / f"Ada_{number}_assignsubmission_file_" / f"{LESSON}.ipynb"
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(40 * 2**20)
    tracemalloc.start()
    try:
        UploadExtractor().extract(str(folder), str(out))
        assert tracemalloc.get_traced_memory()[1] < 3 * 40 * 2**20
    finally:
        tracemalloc.stop()
    assert len(list(out.rglob("*.ipynb"))) == 6


@pytest.mark.parametrize(
    ("path", "student", "name"),
    [
        ("Ada_123_assignsubmission_file_/a.ipynb", "123", "a.ipynb"),
        ("Eve_123_assignsubmission_file__666_assignsubmission_file_/a.ipynb", "666", "a.ipynb"),
        ("Ada_123_assignsubmission_file_a b.ipynb", "123", "a b.ipynb"),
        ("byronada_123_456_a_b-2.ipynb", "123", "a_b.ipynb"),
        ("byronada_LATE_123_456_7_8_x.ipynb", "123", "7_8_x.ipynb"),
        ("Ada_123_assignsubmission_file_/photo.png", "123", ""),
        ("Ada_123_assignsubmission_file_/.ipynb", "123", ""),
    ],
)
def test_whose_a_path_is(path: str, student: str, name: str) -> None:
    found = UploadExtractor().whose(path)
    assert (found[0], found[2]) == (student, name)


@pytest.mark.parametrize("path", ["x.ipynb", f"all/{MOODLE}/a.ipynb", "/etc/x.ipynb", "../x", ""])
def test_whose_cannot_be_told(path: str) -> None:
    with pytest.raises(UploadProblem):
        UploadExtractor().whose(path)
