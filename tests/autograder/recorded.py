"""A class of lesson 00 in a real gradebook whose records are written here, so that nothing has to be run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autograder.batch.submissions import merge_if_needed
from autograder.grade.deciding import checks_digest
from autograder.grade.harness import Graded
from autograder.grade.records import Record, save
from autograder.grade.settings import Settings
from autograder.grade.submitted import collected_from, parse_notebook, places_of
from autograder.gradebook.course import Course, Submitted, init_course
from labkit.checks import registry
from labkit.checks.report import STOPPED, PropertyResult, Report, Stop

LESSON = "00_collectives"
RING, SECONDS, BANDWIDTH, DEADLOCK = (exercise.id for exercise in registry.exercises("00"))
MOST = sum(exercise.max_points for exercise in registry.exercises("00"))

Change = Callable[[Report], Report]


def new_course(root: Path) -> Course:
    """A course with lesson 00 in its gradebook, graded in no sandbox."""
    shutil.copytree(_made_once().name, root, dirs_exist_ok=True)
    return Course(root)


@cache
def _made_once() -> TemporaryDirectory[str]:
    """nbgrader takes two seconds to add a lesson, and nothing that it writes names the folder."""
    made = TemporaryDirectory()
    init_course(Path(made.name))
    Settings(Path(made.name), {LESSON: 3}, unsafe=True).save()
    Course(Path(made.name)).add_lesson(LESSON)
    return made


def record(
    course: Course,
    student: str,
    notebook: Mapping[str, Any],
    changes: Mapping[str, Change] | None = None,
    merge: bool = True,
) -> Record:
    """Hand in a notebook that earned everything but what `changes` takes (exercise -> what to make of its
    report), and bring gradebook and feedback up to it, unless `merge` is False.
    """
    path = course.root / "submitted" / student / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(notebook).encode()
    path.write_bytes(data)
    made = Record(
        *(LESSON, student, path.name, hashlib.sha256(data).hexdigest()),
        *(3, "none", checks_digest(LESSON)),
    )
    exercises = registry.exercises(LESSON)
    cells = parse_notebook(data).cells
    made.places, made.collected = places_of(cells, exercises), collected_from(cells)
    for exercise in exercises:
        change = (changes or {}).get(exercise.id, lambda report: report)
        made.graded[exercise.id] = Graded(change(passed(exercise.id)))
    save(course.root, made)
    if merge:
        merge_if_needed(course, LESSON, Submitted(student, path), feedback=True)
    return made


def passed(exercise_id: str) -> Report:
    """The report of an exercise with all its points."""
    exercise = registry.exercise(exercise_id)
    rows = [PropertyResult(p.name, p.kind, p.points, p.points, True, p.says) for p in exercise.properties]
    return Report(exercise.id, exercise.title, rows, "passed")


def wrong(*names: str) -> Change:
    """What loses these properties."""
    told: dict[str, Any] = {"expected": "10.0", "seen": "7.0", "rank": 1, "case": "a tensor of 12, 4 ranks"}

    def change(report: Report) -> Report:
        rows = [
            replace(row, points=0, passed=False, usual_cause="A chunk was added twice.", **told)
            if row.name in names
            else row
            for row in report.rows
        ]
        return replace(report, rows=rows, verdict="failed")

    return change


def stopped(text: str, verdict: str = "error") -> Change:
    """What ended an exercise before anything could be seen."""

    def change(report: Report) -> Report:
        rows = [replace(row, points=0, passed=False, seen=STOPPED, case="4 ranks") for row in report.rows]
        return replace(report, rows=rows, verdict=verdict, stops=[Stop(text, "a tensor of 12, 4 ranks")])

    return change


def not_attempted(report: Report) -> Report:
    """What is made of an exercise whose stub is still there."""
    rows = [replace(row, points=0, passed=False, seen="the stub is still there") for row in report.rows]
    return replace(report, rows=rows, verdict="not_attempted")
