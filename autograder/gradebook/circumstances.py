"""What decides a student's page and late penalty beside the record of their work."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autograder.gradebook.lateness import due_date, read_extensions
from autograder.gradebook.requests import FILE


def circumstances(course: Path, db_url: str, lesson: str, student: str) -> str:
    """A digest of what decides a student's page and late penalty beside the record: the course's settings
    and plugins, the due date, the extension, the time of handing in, and what lies beside the notebook.
    """
    folder = course / "submitted" / student / lesson
    paths = (*sorted(course.glob("*.py")), *(folder / name for name in ("timestamp.txt", FILE)))
    texts = [path.read_bytes() for path in paths if path.is_file()]
    until = read_extensions(course).get((student, lesson[:2]))
    texts.append(f"{until} {due_date(db_url, lesson)}".encode())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
