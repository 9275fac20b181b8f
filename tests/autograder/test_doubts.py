"""Whose work seems to stand where grading does not look is told: a zero is no surprise to anybody."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from conftest import hand_in, notebook, solution
from recorded import DEADLOCK, LESSON, MOST, RING, new_course, not_attempted, record

from autograder.batch.run import _finished
from autograder.batch.submissions import Run
from autograder.cli import _tell, main
from autograder.grade.records import load, load_all
from autograder.gradebook.course import Course
from autograder.gradebook.doubts import doubts_about
from labkit.checks import registry

STUB = 'def ring_all_reduce(x, group):\n    raise NotImplementedError("01.ring")\n'
NOTHING = {exercise.id: not_attempted for exercise in registry.exercises(LESSON)}
OTHERS = "01.count-parameters"


def in_markdown(made: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its code cells turned to text."""
    return made | {
        "cells": [
            {"cell_type": "markdown", "source": c["source"].splitlines(True), "metadata": {}}
            for c in made["cells"]
        ]
    }


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """All but `ada` and `gone` have no points. `empty` just did nothing."""
    made = new_course(tmp_path_factory.mktemp("class"))
    record(made, "ada", notebook(solution(RING)))
    hand_in(made.root, "ada", notebook(STUB), f"{LESSON}-Copy1", LESSON)
    record(made, "empty", notebook(STUB), NOTHING)
    record(made, "two", notebook(STUB), NOTHING)
    hand_in(made.root, "two", notebook(solution(RING)), f"{LESSON}-Copy1", LESSON)
    record(made, "other", notebook(solution(OTHERS)), NOTHING)
    record(made, "text", in_markdown(notebook("import torch", solution(RING))), NOTHING)
    part = notebook(solution(DEADLOCK))
    part["cells"] += in_markdown(notebook(solution(RING)))["cells"]
    record(made, "part", part, {RING: not_attempted})
    record(made, "gone", notebook(solution(RING)))
    shutil.rmtree(made.root / "submitted" / "gone")
    return made


SAYS = {
    "two": [
        f"nothing is attempted in {LESSON}.ipynb, and another notebook lies beside it ({LESSON}-Copy1.ipynb)",
        "run `autograder grade 00`",
    ],
    "other": ["defines what lesson 01 asks for (count_parameters)", "nothing of lesson 00"],
    "text": [f"what {RING} asks for stands in cells that are not code (cell 2 of {LESSON}.ipynb)"],
    "part": ["cells that are not code (cell 2"],
    "gone": [f"no notebook lies in submitted/gone/{LESSON}/ any more", "records/"],
}


def autograder(course: Course, *words: str) -> Result:
    done = CliRunner().invoke(main, [*words, "--course", str(course.root)])
    assert done.exit_code == 0, done.output
    return done


def test_what_is_in_doubt_is_told_and_nothing_else(course: Course) -> None:
    told = doubts_about(course, LESSON, load_all(course.root, LESSON))
    assert set(told) == set(SAYS)
    for student, words in SAYS.items():
        (sentence,) = told[student]
        assert all(word in sentence for word in words), sentence


def test_report_and_csv_have_a_mark(course: Course, tmp_path: Path) -> None:
    lines = autograder(course, "report", "00", "--csv", str(tmp_path / "x.csv")).stdout.splitlines()
    marked = {line.split()[0] for line in lines if line.endswith(" IN DOUBT UNSAFE")}
    assert marked == set(SAYS)
    below = lines[lines.index("in doubt:") + 1 :]
    assert all(any(line.startswith(f"  {who}: ") and SAYS[who][0] in line for line in below) for who in SAYS)
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "x.csv").open())}
    assert {who for who, row in rows.items() if row["in_doubt"]} == set(SAYS)
    assert (rows["gone"]["points"], rows["two"]["points"]) == (f"{MOST}", "0")
    story = autograder(course, "report", "00", "--explain", "two").stdout
    assert "\nin doubt: nothing is attempted" in story


def test_the_last_lines_of_grade_name_those_whom_it_graded(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _finished(course, LESSON, Run(graded=["ada", "two"], kept=["text"]))
    with pytest.raises(SystemExit) as ended:
        _tell(run, LESSON)
    assert ended.value.code == 0, "a grade all the same"
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("  text: in doubt: ") or first.startswith("  two: in doubt: ")
    assert len(others) == 1


Change = Callable[[Path], object]
CHANGED: Mapping[str, Change] = {
    "work that was changed since": lambda path: path.write_text(json.dumps(notebook("x = 1"))),
    "a file that is no notebook": lambda path: path.write_text("{}"),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_of_what_was_not_graded_nothing_is_told(tmp_path: Path, change: Change) -> None:
    made = new_course(tmp_path)
    record(made, "two", notebook(STUB), NOTHING)
    hand_in(made.root, "two", notebook(solution(RING)), "copy", LESSON)
    change(made.root / "submitted" / "two" / LESSON / f"{LESSON}.ipynb")
    graded = load(made.root, LESSON, "two")
    assert graded is not None
    assert doubts_about(made, LESSON, [graded]) == {}
