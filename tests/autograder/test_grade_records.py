"""What a record is made under, and how it is told."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from conftest import LESSON

from autograder.grade.harness import Graded, hold_back
from autograder.grade.records import Record, deciding_files
from autograder.gradebook.report import as_csv, table
from labkit.checks import registry
from labkit.checks.report import PropertyResult, Report


def names(lesson: str) -> set[str]:
    return {"/".join(path.parts[-2:]) for path in deciding_files(lesson)}


def test_a_changed_check_grades_again() -> None:
    """Whatever its lesson's checks are made of: modules, a package, tables, unseen values, the solution."""
    third, first = names("03_data_parallel"), names("01_memory_math")
    assert {"lesson_03/overlap.py", "hidden/lesson_03.py", "checks/judge.py"} <= third
    assert "solutions/03_data_parallel.py" in third
    assert {"checks/lesson_01.py", "checks/lesson_01.json", "hidden/memory_values.py"} <= first


def test_another_lessons_check_does_not() -> None:
    assert not [name for name in names("03_data_parallel") if "lesson_04" in name or "lesson_01" in name]


def test_points_held_back_are_not_zeros() -> None:
    exercise = registry.exercises(LESSON)[0]
    rows = [PropertyResult(p.name, p.kind, p.points, p.points, True, p.says) for p in exercise.properties]
    graded = Graded(Report(exercise.id, exercise.title, rows, "passed", []))
    hold_back(graded)
    assert graded.held
    record = Record(LESSON, "amelie", "a.ipynb", "", 1, "bubblewrap", "", graded={exercise.id: graded})
    assert Record.from_json(record.to_json()).held == record.held
    row = next(csv.DictReader(io.StringIO(as_csv([record], LESSON))))
    assert row["held_back"].split() == record.held
    assert {row[name] for name in record.held} == {""}
    assert "HELD BACK" in table([record])
    assert record.verify_json()["exercises"][exercise.id]["held_back"] == graded.held


def test_the_files_are_there() -> None:
    assert all(isinstance(path, Path) and path.is_file() for path in deciding_files(LESSON))
