"""Tables that people and platforms write: CSV files, read as they are meant."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from autograder.gradebook.problems import CourseError


def text_of(path: Path) -> str:
    """A table's text. CourseError says which line is not UTF-8, as some programs save tables."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise CourseError(
            f"{path}, line {line}: expected UTF-8, found the byte {data[problem.start]:#04x}; save the table "
            'as "CSV UTF-8"'
        ) from None


def rows_of(text: str) -> csv.DictReader[str]:
    """The rows of a table. A text in quotes keeps its line ends."""
    return csv.DictReader(io.StringIO(text, newline=""))
