"""Scores for a learning platform: filled into the platform's own file, or in a new one of its form.

The columns are those that the platforms' importers look for. Moodle's offline grading takes its grading
worksheet back: "Identifier" with the participant's number, "Grade", "Last modified (grade)". The number is
the assignment's own and no user's id, so Moodle's gradebook import cannot find it: that goes by the columns
one maps, for example "ID number" or "Email address". Canvas takes "Student", "ID", "SIS User ID", "SIS Login
ID", "Section" and then assignments, finds a student by ID, SIS ids or name, and reads "Points Possible".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.gradebook.problems import CourseError
from autograder.gradebook.report import Score, plain
from autograder.gradebook.roster import Roster, ids_of
from autograder.gradebook.tables import table_of

_CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account", "Section")


@dataclass(frozen=True)
class Filled:
    """A platform's file with scores in it. unknown: students whom it does not have. problems: what the
    platform would not take.
    """

    text: str
    unknown: list[str]
    problems: list[str]


def moodle_csv(scores: Sequence[Score], lesson: str, roster: Roster) -> str:
    """For Moodle's gradebook import: columns to map from, and the sum. Ungraded work has no value."""
    rows = [[plain(s.student), plain(roster.email(s.student)), s.text] for s in scores]
    return _written(["ID number", "Email address", lesson], rows)


def changed_ids(scores: Sequence[Score], platform: str) -> list[str]:
    """A sentence for each student whom the platform does not find by the id that is written."""
    return [
        f"the id {score.student!r} is written as {plain(score.student)!r}, as spreadsheets would take it for "
        f"a formula, and {platform} finds nobody by that: write the score {score.text or '(none yet)'} there"
        for score in scores
        if plain(score.student) != score.student
    ]


def canvas_csv(
    scores: Sequence[Score], lesson: str, roster: Roster, most: float, canvas_ids: bool = False
) -> str:
    """For Canvas's gradebook import: Student, ID, SIS ids, Section, the assignment; points possible first.

    most: the points that can be had. canvas_ids: the students' ids are Canvas's own numbers, as in its zips,
    rather than the school's.
    """
    rows = [["Points Possible", "", "", "", "", f"{most:g}"]]
    for score in scores:
        student = plain(score.student)
        ids = [student, "", ""] if canvas_ids else ["", student, student]
        rows.append([plain(roster.name(score.student)) or student, *ids, "", score.text])
    return _written(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", lesson], rows)


def fill_moodle(worksheet: str, scores: Sequence[Score]) -> Filled:
    """Moodle's grading worksheet with its column "Grade" filled in, and everything else as it was.

    Rows of students without a score stay as they are, and Moodle leaves these alone.
    """
    head, rows = _read(worksheet, ("Identifier", "Grade"))
    found, doubled = _matched(rows, scores)
    problems = []
    for row, score in found:
        row["Grade"] = score.text
        most = row.get("Maximum Grade") or row.get("Maximum grade") or ""
        problems += _other_maximum("Moodle", most, [score], "leaves a higher grade out")
    return _filled(head, rows, found, doubled, scores, problems)


def fill_canvas(gradebook: str, scores: Sequence[Score], lesson: str, column: str = "") -> Filled:
    """Canvas's exported gradebook, cut to its students and one assignment with the scores filled in.

    column: the assignment's, as it stands there; the one that has the lesson's name without it.
    """
    head, rows = _read(gradebook, ("Student", "ID", "Section"))
    chosen = column or _column_of(head, lesson)
    assignments = [name for name in head if name not in _CANVAS]
    if chosen not in assignments:
        raise CourseError(f"expected an assignment's column {chosen!r}; there are {assignments}")
    found, doubled = _matched(rows, scores)
    for row, score in found:
        row[chosen] = score.text
    most = next((row[chosen] for row in rows if (row["Student"] or "").strip() == "Points Possible"), "")
    kept = [name for name in head if name in _CANVAS] + [chosen]
    problems = _other_maximum("Canvas", most, scores, "counts it by its own")
    return _filled(kept, rows, found, doubled, scores, problems)


def _other_maximum(platform: str, most: str | None, scores: Sequence[Score], what: str) -> list[str]:
    """A sentence where the platform's maximum is another than the lesson's. what: the platform does then."""
    possible = max((score.max_score for score in scores), default=0.0)
    most = (most or "").strip()
    if not scores or not re.fullmatch(r"\d+(\.\d*)?", most) or float(most) == possible:
        return []
    return [
        f"the assignment's maximum is {most}, the lesson has {possible:g} points: {platform} {what}, so set "
        "the assignment's maximum to that"
    ]


def _column_of(head: Sequence[str], lesson: str) -> str:
    titles = {name: re.sub(r" \(\d+\)$", "", name).strip() for name in head if name not in _CANVAS}
    number = re.compile(rf"{lesson[:2]}(?![\d%])")  # "100 points" is none of lesson 10
    found = [name for name, title in titles.items() if lesson in title.lower() or number.match(title)]
    if len(found) != 1:
        raise CourseError(f"which column is {lesson}? --column NAME, one of {list(titles)}")
    return found[0]


def _matched(
    rows: Sequence[dict[str, str]], scores: Sequence[Score]
) -> tuple[list[tuple[dict[str, str], Score]], list[Score]]:
    """Whose row each is; and scores whose id several rows have.

    One's number on the platform may be another's at school.
    """
    by_student = {score.student: score for score in scores if score.complete}
    rows_of: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if (student := next((one for one in ids_of(row) if one in by_student), None)) is not None:
            rows_of.setdefault(student, []).append(row)
    found = [(its[0], by_student[student]) for student, its in rows_of.items() if len(its) == 1]
    doubled = [by_student[student] for student, its in rows_of.items() if len(its) > 1]
    return found, doubled


def _filled(
    head: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    found: Sequence[tuple[Mapping[str, str], Score]],
    doubled: Sequence[Score],
    scores: Sequence[Score],
    problems: Sequence[str],
) -> Filled:
    there = {score.student for score in (*(score for _, score in found), *doubled)}
    told = [
        f"several rows have the id {score.student!r}, and none of them was filled in: write the score "
        f"{score.text} where it belongs"
        for score in doubled
    ]
    unknown = [score.student for score in scores if score.complete and score.student not in there]
    text = _written(head, [[row.get(name) or "" for name in head] for row in rows])
    return Filled(text, unknown, [*told, *dict.fromkeys(problems)])


def _read(text: str, needed: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    table = table_of(text.removeprefix("\ufeff"), "the platform's file")
    head, rows = table.columns, table.rows
    missing = [name for name in needed if name not in head]
    if missing:
        raise CourseError(f"expected the columns {', '.join(needed)}; found {', '.join(head)[:300]}")
    return head, rows


def _written(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    # All in quotes, as in `listing.as_csv`.
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([head, *rows])
    return out.getvalue()
