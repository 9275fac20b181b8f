"""What decides a student's page and late penalty beside the record of their work."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autograder.grade.submitted import read_bytes
from autograder.gradebook.handed_in import TIME
from autograder.gradebook.lateness import due_date, read_extensions
from autograder.gradebook.requests import FILE
from labkit.checks.source.notebook import BadNotebook


def circumstances(course: Path, db_url: str, lesson: str, student: str) -> str:
    """A digest of what decides a student's page and late penalty beside the record: the course's settings
    and plugins, the due date, the extension, the time of handing in, and what lies beside the notebook.
    """
    folder = course / "submitted" / student / lesson
    texts = [path.read_bytes() for path in sorted(course.glob("*.py")) if path.is_file()]
    texts += [_bytes_of(folder / name) for name in (TIME, FILE)]
    until = read_extensions(course).get((student, lesson[:2]))
    texts.append(f"{until} {due_date(db_url, lesson)}".encode())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _bytes_of(path: Path) -> bytes:
    """What a student's file holds; nothing where there is none, or none that can be read."""
    try:
        return read_bytes(path)
    except (BadNotebook, OSError):
        return b""
