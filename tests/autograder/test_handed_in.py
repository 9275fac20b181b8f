"""`timestamp.txt`: nbgrader's form of a time and no other, read in no time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from conftest import notebook, solution
from nbgrader.utils import parse_utc
from recorded import LESSON, RING, new_course, record

from autograder.gradebook.handed_in import MOST_BYTES, text_of_time, time_if_known, time_of
from autograder.gradebook.problems import CourseError


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-12-01 23:59:00.123456 UTC", datetime(2026, 12, 1, 23, 59, 0, 123456)),  # submit's
        ("2026-11-21 15:04:00", datetime(2026, 11, 21, 15, 4)),  # zip_collect's
        (" 2026-12-01 23:59:00 UTC\n", datetime(2026, 12, 1, 23, 59)),
    ],
)
def test_times_as_nbgrader_writes_them(tmp_path: Path, text: str, at: datetime) -> None:
    (tmp_path / "timestamp.txt").write_text(text)
    assert time_of(tmp_path) == time_if_known(tmp_path) == at == parse_utc(text.strip())
    (tmp_path / "timestamp.txt").write_text(text_of_time(at))
    assert time_of(tmp_path) == at


def test_what_says_nothing(tmp_path: Path) -> None:
    assert time_of(tmp_path) is None
    (tmp_path / "timestamp.txt").write_text(" \n")
    assert time_of(tmp_path) is None
    (tmp_path / "timestamp.txt").unlink()
    (tmp_path / "other.txt").write_text("2026-12-01 23:59:00 UTC")
    (tmp_path / "timestamp.txt").symlink_to(tmp_path / "other.txt")
    assert time_of(tmp_path) is None


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "data",
    [
        *(b"2026-13-01 10:00:00 UTC", b"2026-12-01 10:00 UTC", b"2026-12-01", b"10", b"monday", b"9" * 20),
        *(b"2026-12-01 10:00:00 +0100", b"2026-12-01 10:00:00 -86399", b"2026-12-01 10:00:00 CEST"),
        *(b"2026-12-01 10:00:00 /dev/zero", b"2026-12-01 10:00:00 Z", "２026-12-01 10:00:00".encode()),
        *(b"1" * 1_000_000, b"1." * 500_000, b"a." * 500_000, b" " * (MOST_BYTES + 1), b"\xff\xfe"),
    ],
)
def test_what_is_in_another_form_is_refused_at_once(tmp_path: Path, data: bytes) -> None:
    """nbgrader's reader takes 10 for a time of the day of grading, +0100 for a hundred seconds, CEST for UTC,
    and minutes over a long text.
    """
    (tmp_path / "timestamp.txt").write_bytes(data)
    with pytest.raises(CourseError, match=r"timestamp\.txt: expected a time such as 2026-12-01 23:59:00 UTC"):
        time_of(tmp_path)
    assert time_if_known(tmp_path) is None


def test_nbgraders_own_command_grades_nobody_whose_time_is_none(tmp_path: Path) -> None:
    """`nbgrader autograde` and formgrader's button, which do not come through `autograder grade`."""
    course = new_course(tmp_path)
    record(course, "ada", notebook(solution(RING)))
    (tmp_path / "submitted" / "ada" / LESSON / "timestamp.txt").write_text("monday")
    with pytest.raises(CourseError, match="expected a time such as"):
        course.merge(LESSON, "ada")
    assert not (tmp_path / "autograded" / "ada" / LESSON).exists()
