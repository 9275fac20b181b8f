"""Until when work might be handed in: what nbgrader's late penalties go by.

`extensions.csv` in a course's folder gives single students more time, a line each: student, lesson, until.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from nbgrader.api import Gradebook, MissingEntry

from autograder.grade.records import FOLDER
from autograder.gradebook.problems import CourseError, did_you_mean
from autograder.gradebook.tables import table_of, text_of
from labkit.checks import registry
from labkit.checks.source.text import visible
from labkit.whole_file import write_whole

EXTENSIONS = "extensions.csv"
COLUMNS = ("student", "lesson", "until")


def apply_extension(course: Path, db_url: str, lesson: str, student: str) -> None:
    """Bring the gradebook up to the file. An extension that does not come from there stays as it is."""
    until = read_extensions(course).get((student, lesson[:2]))
    extended = _Extended(course / FOLDER / lesson / ".extended")
    if until is None and student not in extended.students():
        return
    if until is not None:  # first: an extension that a crash leaves behind ends with its line all the same
        extended.note(student, True)
    with Gradebook(db_url) as gradebook:
        extend(gradebook, lesson, student, until)
    if until is None:
        extended.note(student, False)


@dataclass(frozen=True)
class _Extended:
    """Whose extension in the gradebook comes from the file: one that is taken out of it ends."""

    path: Path

    def students(self) -> set[str]:
        return set(self.path.read_text(encoding="utf-8").splitlines()) if self.path.is_file() else set()

    def note(self, student: str, there: bool) -> None:
        before = self.students()
        after = before | {student} if there else before - {student}
        if after != before:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, "".join(f"{one}\n" for one in sorted(after)).encode())


def extend(gradebook: Gradebook, lesson: str, student: str, until: datetime | None) -> None:
    """Let a student hand in until then; until the due date of all with None. CourseError where that is less
    time than all have.
    """
    submission = gradebook.find_submission(lesson, student)
    due = submission.assignment.duedate
    if until is not None and due is not None and until < due:
        raise CourseError(
            f"{EXTENSIONS} gives {visible(student)!r} until {until} UTC for {lesson}, which is due for all "
            f"at {due} UTC: correct the line, or take it out"
        )
    submission.extension = until - due if until is not None and due is not None else None
    gradebook.db.commit()


def read_extensions(course: Path) -> Mapping[tuple[str, str], datetime]:
    """(student, two digits of a lesson) -> until when, as UTC without a zone, as nbgrader keeps times.

    CourseError says which line cannot be read.
    """
    path = course / EXTENSIONS
    if not path.is_file():
        return {}
    found: dict[tuple[str, str], datetime] = {}
    table = table_of(text_of(path), str(path))
    for number, row in zip(table.lines, table.rows, strict=True):
        if not any((row[column] or "").strip() for column in table.columns):
            continue  # as programs for tables write them below the last line
        try:
            student, lesson, until = ((row[column] or "").strip() for column in COLUMNS)
            at = _utc(until)
            if found.setdefault((student, _digits(lesson)), at) != at:
                raise ValueError("a line above gives the same student another time")
        except (KeyError, ValueError, OverflowError) as problem:
            raise CourseError(
                f"{path}, line {number}: expected {','.join(COLUMNS)}, as in "
                f"ada,06,2026-12-01 23:59 +0100; found {','.join(map(str, row.values()))} ({problem})"
            ) from None
    return found


def unused_extensions(course: Path, lesson: str, handed_in: Collection[str]) -> list[str]:
    """A sentence for each extension of a lesson whose student handed nothing in: the id may be mistyped."""
    told = []
    for student, digits in read_extensions(course):
        if digits == lesson[:2] and student not in handed_in:
            meant = did_you_mean(student, handed_in)
            told.append(
                f"{EXTENSIONS} gives {visible(student)!r} more time for {lesson}, and nobody of that id "
                f"handed it in{meant}"
            )
    return told


def _digits(lesson: str) -> str:
    """The two digits of a lesson given by its number or name. Programs for tables write 1 for 01."""
    found = lesson.zfill(2) if lesson.isdecimal() else lesson[:2]
    if found not in registry.lessons():
        raise ValueError(f"there is no lesson {lesson!r}")
    return found


def _utc(text: str) -> datetime:
    """A day and a time, with a zone's name or its offset; UTC without either. Nothing is guessed: 08.12. is
    another day for others, and a zone that is not known would be dropped.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?) ?(.*)", text)
    if found is None:
        raise ValueError("no day and time of it")
    at = datetime.fromisoformat(found[1]).replace(tzinfo=_zone(found[2]))
    return at.astimezone(UTC).replace(tzinfo=None)


def _zone(name: str) -> tzinfo:
    if re.fullmatch(r"[+-]\d\d:?\d\d", name):
        return datetime.strptime(name, "%z").tzinfo or UTC
    try:
        return UTC if name in ("", "Z") else ZoneInfo(name)
    except (OSError, KeyError, ValueError):
        raise ValueError(f"no zone {name!r}: expected one as Europe/Berlin, or an offset as +0100") from None


def due_date(db_url: str, lesson: str) -> datetime | None:
    """When a lesson is due for all, as UTC; None where nobody has said."""
    with Gradebook(db_url) as gradebook:
        try:
            due: datetime | None = gradebook.find_assignment(lesson).duedate
        except MissingEntry:
            return None
    return due
