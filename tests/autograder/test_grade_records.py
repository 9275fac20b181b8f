"""What a record is made under, and how it is told."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest
from conftest import LESSON

from autograder.grade.feedback import for_the_student
from autograder.grade.harness import Graded, hold_back
from autograder.grade.records import Record, load_all, save
from autograder.grade.reference import graded_submission, solved_cells
from autograder.grade.scan import Flag
from autograder.gradebook.listing import Listing, as_csv, table
from autograder.gradebook.report import BELOW, explain
from labkit.checks import registry
from labkit.checks.report import PropertyResult, Report, Stop


def test_points_held_back_are_not_zeros() -> None:
    exercise = registry.exercises(LESSON)[0]
    rows = [PropertyResult(p.name, p.kind, p.points, p.points, True, p.says) for p in exercise.properties]
    graded = Graded(Report(exercise.id, exercise.title, rows, "passed", []))
    hold_back(graded)
    assert graded.held
    record = Record(LESSON, "amelie", "a.ipynb", "", 1, "bubblewrap", "", graded={exercise.id: graded})
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record).held == record.held
    row = next(csv.DictReader(io.StringIO(as_csv(Listing(LESSON, [record])))))
    assert row["held_back"].split() == record.held
    assert {row[name] for name in record.held} == {""}
    assert "HELD BACK" in table(Listing(LESSON, [record]))
    assert record.verify_json()["exercises"][exercise.id]["held_back"] == graded.held


@pytest.mark.parametrize("student", ["é.dupont", "…", "ö..b", "-x", "a b"])
def test_every_student_is_among_the_records(tmp_path: Path, student: str) -> None:
    """Files with a dot in front are something else: the reference's traffic, what is not written whole."""
    save(tmp_path, Record(LESSON, student, "a.ipynb", "", 1, "none", ""))
    assert [record.student for record in load_all(tmp_path, LESSON)] == [student]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_was_measured_and_is_no_number_costs_nobody_the_record(tmp_path: Path, value: float) -> None:
    exercise = registry.exercises(LESSON)[0]
    measured = Report(exercise.id, exercise.title, [], "passed", measured={"ms": value, "bytes": 8.0})
    graded = Graded(for_the_student(measured, exercise, graded_submission(solved_cells("06"), exercise)[0]))
    save(tmp_path, Record(LESSON, "ada", "a.ipynb", "", 1, "none", "", graded={exercise.id: graded}))
    assert load_all(tmp_path, LESSON)[0].graded[exercise.id].report.measured == {"bytes": 8.0}


MISLEADING = "x\n  note: regraded, see below\n\n12.route: 13 of 13 points (passed)\r\u2028  + gates 2/2"


def test_no_line_of_a_students_text_passes_for_a_line_of_the_report() -> None:
    exercise = registry.exercises(LESSON)[0]
    rows = [
        PropertyResult(p.name, p.kind, 0, p.points, False, p.says, MISLEADING) for p in exercise.properties
    ]
    made = Report(exercise.id, exercise.title, rows, "error", [MISLEADING], [Stop(MISLEADING, "a case")])
    graded = Graded(made, [Flag(MISLEADING)])
    record = Record(LESSON, "eve", "a.ipynb", "", 1, "bubblewrap", "", graded={exercise.id: graded})
    record.notes, record.problem = [MISLEADING], MISLEADING
    lines = explain(record).splitlines()
    theirs = [line for line in lines if "regraded" in line or "13 of 13" in line or "+ gates" in line]
    assert len(theirs) == 3 * (len(rows) + 5)
    assert all(line.startswith(BELOW[1:]) for line in theirs)


def test_a_table_has_all_in_quotes() -> None:
    """Where a spreadsheet takes ; for the separator, no formula begins in the middle of a name."""
    record = Record(LESSON, "eve", "a;=1+1;.ipynb", "", 1, "bubblewrap", "")
    text = as_csv(Listing(LESSON, [record]))
    assert '"a;\'=1+1;.ipynb"' in text
    assert all(line.startswith('"') and line.endswith('"') for line in text.splitlines())
