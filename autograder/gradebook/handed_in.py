"""When a submission was handed in: `timestamp.txt` beside the notebook, nbgrader's file.

A student may have written it. It is read as nbgrader writes it and in no other form: nbgrader's own reader
takes `10` for today's tenth hour, an unknown zone for UTC, +0100 for a hundred seconds, and hours over a long
text.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from autograder.grade.submitted import read_bytes
from autograder.gradebook.problems import CourseError
from labkit.checks.source.notebook import BadNotebook

TIME = "timestamp.txt"
MOST_BYTES = 100  # of that file
AS_WRITTEN = "2026-12-01 23:59:00 UTC"  # what is expected, in messages
_FORM = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)(?: UTC)?", re.ASCII)


def utc_of(text: str) -> datetime:
    """A time as nbgrader writes it, as UTC without a zone. ValueError where it is in another form."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"found {text[:MOST_BYTES]!r}")
    return datetime.fromisoformat(found[1])


def text_of_time(at: datetime) -> str:
    """A time, UTC without a zone, as nbgrader writes it by default."""
    return f"{at:%Y-%m-%d %H:%M:%S.%f} UTC"


def time_of(submission: Path) -> datetime | None:
    """When a submission was handed in, as UTC without a zone; None where the file is empty, not there, or a
    link, which is not followed. CourseError where it holds anything but a time.
    """
    path = submission / TIME
    try:
        if path.is_symlink() or not path.exists():
            return None
        if path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"found {size} bytes")
        text = read_bytes(path, MOST_BYTES).decode().strip()
        return utc_of(text) if text else None
    except (BadNotebook, OSError, ValueError) as problem:
        raise CourseError(
            f"{path}: expected a time such as {AS_WRITTEN} ({str(problem)[:200]}); correct it, or delete "
            "it, and the work counts as handed in in time"
        ) from None


def time_if_known(submission: Path) -> datetime | None:
    """The same, and None too where the file holds anything but a time: for what concerns many students."""
    try:
        return time_of(submission)
    except CourseError:
        return None
