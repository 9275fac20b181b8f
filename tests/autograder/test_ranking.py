"""The class's table: who is in it, under which name, in which order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import SEED, hand_in
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from autograder.batch.submissions import grade_lesson
from autograder.cli import main
from autograder.grade.evidence import Baseline
from autograder.grade.grading import Conditions
from autograder.grade.harness import Graded, grade_cells
from autograder.grade.records import Record, load, save
from autograder.grade.reference import lesson_source, solved_cells
from autograder.grade.submitted import LONGEST_NAME, chosen_name
from autograder.gradebook.course import Course, init_course
from autograder.gradebook.ranking import ranking
from autograder.sandbox.choice import find_sandbox
from labkit.build.course import student_notebook
from labkit.checks import registry
from labkit.checks.lesson_10.fast import MUCH_FASTER, PLAIN_SECONDS
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.submission import Cell

EXERCISE, LESSON = "10.make-it-fast", "10_tracing"
AS_PLAIN_AS_BEFORE = """
def train(model, batches, group, learning_rate):
    return plain_train(model, batches, group, learning_rate)
"""


def record(student: str, name: str, milliseconds: float | None, right: bool = True) -> Record:
    row = PropertyResult("numbers-kept", "numbers", 4.0 * right, 4, right, "")
    slow = PropertyResult("much-faster", "mechanism", 0, 3, False, "")
    measured = {} if milliseconds is None else {"ms a step, replayed": milliseconds, "% exposed": 2.5}
    report = Report(EXERCISE, "", [row, slow], "failed", measured=measured)
    graded = {EXERCISE: Graded(report)}
    return Record("10_tracing", student, "n.ipynb", "", 1, "none", "", graded=graded, chosen_name=name)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('ranking_name = ""\n', ""),
        ('ranking_name = "ring of fire"  # mine\ndef train(): ...', "ring of fire"),
        ("ranking_name='a'\nranking_name = 'b'", "b"),
        ("ranking_name = input()", ""),
        ("    ranking_name = 'inside'", ""),
        ("ranking_name = 'a\\x1b[2J'", ""),
        ("ranking_name = 'red\x1b[31m'", "red\\x1b[31m"),
        (f"ranking_name = '{'long ' * 20}'", ("long " * 20)[:30]),
        ("(" * 10_000 + "\nranking_name = 'deep'", "deep"),
    ],
)
def test_the_name_is_read_and_not_run(source: str, name: str) -> None:
    assert chosen_name([Cell("cell 1", source)]) == name


def test_a_name_without_end_is_cut_before_it_is_looked_at() -> None:
    cells = [
        Cell("cell 1", "ranking_name = 'long'"),
        Cell("cell 2", f"ranking_name = '{chr(0x85) * 5_000_000}'"),
    ]
    began = time.process_time()
    assert chosen_name(cells) == ("\\x85" * 8)[:LONGEST_NAME]
    assert time.process_time() - began < 1


def test_the_table_has_those_who_chose_a_name_and_are_right() -> None:
    records = [
        record("anna", "ring of fire", 7.25),
        record("ben", "", 1.0),
        record("carl", "slow but sure", 9.5),
        record("dora", "wrong", 0.5, right=False),
        record("emil", "twin", 7.25),
        record("finn", "not measured", None),
    ]
    table = ranking(records, "10_tracing")
    places = [(line.split()[0], " ".join(line.split()[1:-2])) for line in table.splitlines()[2:]]
    assert places == [("1", "ring of fire"), ("1", "twin"), ("3", "slow but sure")]
    assert "anna" not in table


def test_nobody_and_nothing_to_rank() -> None:
    assert "nobody to rank yet" in ranking([], "10_tracing")
    assert ranking([], "06_tensor_parallel_ffn") == "06_tensor_parallel_ffn measures nothing"


def test_what_was_measured_is_kept_with_the_record(tmp_path: Path) -> None:
    save(tmp_path, record("anna", "ring of fire", 7.25))
    again = load(tmp_path, "10_tracing", "anna")
    assert again is not None
    assert (again.chosen_name, again.graded[EXERCISE].report.measured["ms a step, replayed"]) == (
        "ring of fire",
        7.25,
    )


def with_capstone(source: str) -> NotebookNode:
    """The lesson as released, its capstone written and nothing else."""
    mine = student_notebook(lesson_source("10"))
    for cell in mine.cells:
        if cell.metadata.get("labkit", {}).get("exercise") == EXERCISE and "def train" in cell.source:
            cell.source = source
    return mine


def course_with(root: Path, capstones: dict[str, str]) -> Course:
    """A course in which students handed these in."""
    init_course(root)
    for student, source in capstones.items():
        hand_in(root, student, with_capstone(source), lesson=LESSON)
    course = Course(root)
    course.add_lesson(LESSON)
    return course


@pytest.mark.days(5)
@pytest.mark.sandbox
@pytest.mark.timeout(580)
def test_a_class_is_graded_and_ranked(tmp_path: Path) -> None:
    fast = next(cell.source for cell in solved_cells("10") if cell.exercise == EXERCISE)
    named = fast.replace('ranking_name = ""', 'ranking_name = "ring of fire"')
    course = course_with(tmp_path, {"anna": named, "ben": f'ranking_name = "snail"\n{AS_PLAIN_AS_BEFORE}'})
    sandbox = find_sandbox()
    reference = grade_cells([registry.exercise(EXERCISE)], solved_cells("10"), sandbox, SEED)
    sent = Baseline.of([job for graded in reference for job in graded.jobs])
    done = grade_lesson(course, Conditions(LESSON, SEED, sandbox, sent), jobs=1, feedback=False)
    assert sorted(done.graded) == ["anna", "ben"]

    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        scores = {name: gradebook.find_submission(LESSON, name).score for name in ("anna", "ben")}
    assert scores == {"anna": registry.exercise(EXERCISE).max_points, "ben": 8}
    told = CliRunner().invoke(main, ["report", "10", "--course", str(tmp_path), "--ranking"])
    rows = {line[5:35].strip(): line[35:].split() for line in told.output.splitlines()[2:]}
    assert list(rows) == ["ring of fire", "snail"], "the fastest first; a slow one is in it too"
    assert float(rows["snail"][0]) == pytest.approx(PLAIN_SECONDS * 1e3, rel=0.02)
    assert float(rows["ring of fire"][0]) < MUCH_FASTER * PLAIN_SECONDS * 1e3
