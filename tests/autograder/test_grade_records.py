"""What a record is made under, and how it is told."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest
from conftest import LESSON

from autograder.grade.harness import Graded, hold_back
from autograder.grade.records import Record, load_all, save
from autograder.gradebook.listing import Listing, as_csv, table
from labkit.checks import registry
from labkit.checks.report import PropertyResult, Report


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
