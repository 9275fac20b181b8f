"""Tables that people and platforms write: CSV files, read as they are meant."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Table:
    """A table's columns, and its rows by them. A cell that a line lacks is None. lines: in which line of the
    text each row ends, from 1; some lines are empty, and some rows have more than one.
    """

    columns: list[str]
    rows: list[dict[str, str]]
    lines: list[int]


def table_of(text: str, called: str) -> Table:
    """What a CSV file has. A text in quotes keeps its line ends. CourseError, with `called` and the line,
    where a quote is not closed: all lines behind it would be one cell.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    begins = 1
    rows, lines = [], []
    try:
        columns = list(reader.fieldnames or [])
        begins = reader.line_num + 1
        for row in reader:
            rows.append(row)
            lines.append(reader.line_num)
            begins = reader.line_num + 1
    except csv.Error as problem:
        raise CourseError(
            f'{called}, line {begins}: not a line of a table ({problem}); is a " missing, or one too many?'
        ) from None
    return Table(columns, rows, lines)
