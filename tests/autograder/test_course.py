"""A course graded through nbgrader: honest work, bad input, everything a student can do to a notebook."""

from __future__ import annotations

import copy
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from conftest import F_ID, LESSON, SEED, MakeCourse, hand_in, notebook, solution
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from autograder.batch.run import grade_course, regrade_course
from autograder.batch.submissions import Run
from autograder.cli import main
from autograder.grade.records import load, load_all
from autograder.gradebook.course import Course
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import Sandbox
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(580)]

F_SUM = grade_id(F_ID, "input-gradients")
POINTS_OF_F = registry.exercise(F_ID).max_points


def find(unsafe: bool) -> Sandbox:
    return find_sandbox()


def with_f_solved(released: NotebookNode) -> NotebookNode:
    """As released, f written in, and every mark of nbgrader's broken."""
    mine = copy.deepcopy(released)
    for cell in mine.cells:
        if cell.metadata.get("labkit", {}).get("exercise") == F_ID:
            cell.source = solution(F_ID)
        if "nbgrader" in cell.metadata:
            cell.metadata["nbgrader"] = {"grade_id": "same for all", "points": -5, "schema_version": 99}
    mine.cells.append(copy.deepcopy(mine.cells[-1]))
    return mine


RAISES = "class CopyToTensorParallel:\n    apply = staticmethod(lambda x, group: 1 / 0)"
TALKS = solution(F_ID).replace("ctx.group = group", "ctx.group = group; print('x' * 2**20)")
TUPLE = solution(F_ID).replace("return x", "return x, x")
SPLIT = [
    "import torch\nimport torch.distributed as dist\nfrom torch import Tensor\nTWO = 2",
    solution(F_ID).replace("dist.all_reduce(total, group=ctx.group)", "add_up(total, ctx.group)"),
    "def add_up(t, group):\n    dist.all_reduce(t, group=group)",
]


@pytest.fixture(scope="module")
def graded(
    tmp_path_factory: pytest.TempPathFactory, make_course: MakeCourse, released: NotebookNode
) -> tuple[Path, Run]:
    """One course with one of everything, graded once."""
    root = tmp_path_factory.mktemp("a course")
    course = make_course(root)
    submissions: dict[str, Any] = {
        "honest": notebook(solution(F_ID)),
        "broken-marks": with_f_solved(released),
        "empty": notebook(),
        "not-json": b"\x00 not a notebook",
        "raises": notebook(RAISES),
        "talks": notebook(TALKS),
        "tuple": notebook(TUPLE),
        "split": notebook(*SPLIT),
        "helper-not-definition": notebook(
            "import torch.distributed as dist\nprint('start')\nfor n in [1]: FACTOR = n",
            solution(F_ID).replace("return total", "return total * FACTOR"),
        ),
        "syntax-error": notebook("def broken(:", solution(F_ID)),
    }
    for student, what in submissions.items():
        hand_in(root, student, what)
    hand_in(root, "renamed", notebook(solution(F_ID)), "my homework (2)")
    (root / "submitted" / "honest" / LESSON / "link.txt").symlink_to(root / "gradebook.db")
    linked = root / "submitted" / "linked" / LESSON / f"{LESSON}.ipynb"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(root / "submitted" / "honest" / LESSON / f"{LESSON}.ipynb")
    hand_in(root, "bad[name]*", notebook(solution(F_ID)))
    run = grade_course(course, LESSON, 2, SEED, False, find)
    return root, run


def verdict(root: Path, student: str) -> str:
    record = load(root, LESSON, student)
    assert record is not None
    return record.graded[F_ID].report.verdict


def points(root: Path) -> dict[str, float]:
    return {record.student: record.points for record in load_all(root, LESSON)}


def test_everyone_has_a_grade(graded: tuple[Path, Run]) -> None:
    root, run = graded
    assert len(run.graded) == 12
    assert list(run.failed) == ["'bad[name]*'"]
    expected = dict.fromkeys(
        ("honest", "broken-marks", "talks", "split", "syntax-error", "renamed"), POINTS_OF_F
    )
    nothing = ("empty", "not-json", "raises", "linked")
    found = points(root)
    assert found.pop("tuple") < POINTS_OF_F / 2
    assert found.pop("helper-not-definition") < POINTS_OF_F / 2
    assert found == pytest.approx({**expected, **dict.fromkeys(nothing, 0)})


def test_verdicts(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    expected = {"honest": "passed", "raises": "error", "empty": "not_attempted", "not-json": "error"}
    assert {student: verdict(root, student) for student in expected} == expected
    untouched = load(root, LESSON, "broken-marks")
    assert untouched is not None
    assert [g.report.verdict for g in untouched.graded.values()] == ["passed", *["not_attempted"] * 4]


def test_a_name_that_is_not_a_definition_is_named(graded: tuple[Path, Run]) -> None:
    record = load(graded[0], LESSON, "helper-not-definition")
    assert record is not None
    (stop,) = record.graded[F_ID].report.stops
    assert "FACTOR" in stop.text
    assert "set in cell 1, line 3" in stop.text


def test_the_gradebook_holds_the_records(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
        for student, earned in points(root).items():
            submission = gradebook.find_submission(LESSON, student)
            assert submission.score == pytest.approx(earned), student
            grades = submission.notebooks[0].grades
            assert len(grades) == sum(len(e.properties) for e in registry.exercises("06"))
            odd = [g.name for g in grades if g.auto_score is None or g.needs_manual_grade]
            assert odd == [], student


def test_feedback_shows_the_tables_and_the_students_own_cell(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    page = (root / "feedback" / "raises" / LESSON / f"{LESSON}.html").read_text()
    assert "labkit-report" in page
    assert "ZeroDivisionError" in page
    assert "Stopped" in page
    assert "cell 1, line 2" in page
    lost = (root / "feedback" / "empty" / LESSON / f"{LESSON}.html").read_text()
    assert lost.count("<h2") == 1 + len(registry.exercises(LESSON)), "the graded cells were put back"


def test_links_were_not_followed(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    assert not list((root / "autograded").rglob("link.txt"))
    record = load(root, LESSON, "linked")
    assert record is not None
    assert "symbolic link" in record.problem


def test_the_csv(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    rows = list(csv.DictReader((root / "records" / LESSON / "grades.csv").open()))
    honest = next(row for row in rows if row["student"] == "honest")
    assert (honest["points"], honest["sandbox"], honest["seed"]) == (
        str(POINTS_OF_F),
        "bubblewrap",
        str(SEED),
    )
    assert float(honest[F_SUM]) == registry.exercise(F_ID).property("input-gradients").points


@pytest.mark.days
def test_nothing_is_graded_twice(graded: tuple[Path, Run]) -> None:
    root, run = graded
    before = {path: path.stat().st_mtime_ns for path in (root / "records").rglob("*.json")}
    again = grade_course(Course(root), LESSON, 2, None, False, find)
    assert again.graded == []
    assert sorted(again.kept) == sorted(run.graded)
    assert {path: path.stat().st_mtime_ns for path in (root / "records").rglob("*.json")} == before


@pytest.mark.days
def test_a_resubmission_is_graded_again_and_a_manual_grade_is_kept(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
        grade = gradebook.find_grade(F_SUM, LESSON, LESSON, "raises")
        grade.manual_score = 1.5
        gradebook.db.commit()
    hand_in(root, "raises", notebook(solution(F_ID)))
    again = grade_course(Course(root), LESSON, 1, None, False, find)
    assert again.graded == ["raises"]
    with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
        grade = gradebook.find_grade(F_SUM, LESSON, LESSON, "raises")
        assert (grade.auto_score, grade.score, grade.needs_manual_grade) == (3.0, 1.5, True)


@pytest.mark.days
def test_one_exercise_of_one_student_again(graded: tuple[Path, Run]) -> None:
    root, _ = graded
    before = load(root, LESSON, "honest")
    run = regrade_course(Course(root), LESSON, ["honest"], [F_ID], False, find)
    after = load(root, LESSON, "honest")
    assert run.graded == ["honest"]
    assert before is not None
    assert after is not None
    assert after.points == before.points
    assert set(after.graded) == set(before.graded)


@pytest.mark.days(0)
def test_stock_commands_work_on_it(graded: tuple[Path, Run]) -> None:
    """`nbgrader autograde`, `generate_feedback` and `export` take the same steps, to the same points."""
    root, _ = graded
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def nbgrader(*words: str) -> None:
        subprocess.run(["nbgrader", *words], cwd=root, env=env, check=True, capture_output=True, timeout=200)

    hand_in(root, "late", notebook(solution(F_ID)))
    (root / "submitted" / "late" / LESSON / "timestamp.txt").write_text("2031-01-01 00:00:00 UTC")
    nbgrader("autograde", LESSON, "--student", "late")
    nbgrader("generate_feedback", LESSON, "--student", "late")
    nbgrader("export", "--to", "grades.csv")
    row = next(r for r in csv.DictReader((root / "grades.csv").open()) if r["student_id"] == "late")
    assert float(row["raw_score"]) == POINTS_OF_F
    assert "2031" in row["timestamp"]
    assert "labkit-report" in (root / "feedback" / "late" / LESSON / f"{LESSON}.html").read_text()


@pytest.mark.days
def test_command_line(graded: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded torch; test_guide runs the commands themselves."""
    root, _ = graded
    monkeypatch.chdir(root)

    def autograder(*words: str) -> Result:
        return CliRunner().invoke(main, words)

    path = hand_in(tmp_path, "x", notebook(solution(F_ID)))
    found = json.loads(autograder("verify", str(path), "--json", "--seed", "4").stdout)
    assert found["exercises"][F_ID]["points"] == POINTS_OF_F
    keys = {"name", "passed", "points", "max_points", "message"}
    assert set(found["exercises"][F_ID]["properties"][0]) == keys
    assert "honest" in autograder("report", "06").stdout
    figure = tmp_path / "lost.png"
    explained = autograder("report", "06", "--explain", "raises", "--figure", str(figure)).stdout
    assert f"seed {SEED}, sandbox bubblewrap" in explained
    assert figure.read_bytes().startswith(b"\x89PNG")
    moodle = autograder("export", "06", "--to", "moodle").stdout.splitlines()
    assert moodle[0] == f'"ID number","Email address","{LESSON}"'
    assert f'"honest","","{POINTS_OF_F:g}"' in moodle
    canvas = list(csv.reader(autograder("export", "06", "--to", "canvas").stdout.splitlines()))
    assert canvas[1][0] == "Points Possible"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["report", "77"], "77"),
        (["regrade", "06", "--exercise", "06.nothing"], "06.nothing"),
        (["grade", "06", "--jobs", "no"], "no"),
        (["grade", "06", "--jobs", "²"], "²"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_cannot_be_done_says_why(
    graded: tuple[Path, Run], monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(graded[0])
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code != 0
    assert isinstance(refused.exception, SystemExit), "a message, no traceback"
    assert says in refused.stderr


@pytest.mark.days
def test_without_a_sandbox_the_package_is_named(tmp_path: Path) -> None:
    path = hand_in(tmp_path, "x", notebook(solution(F_ID)))
    command = [sys.executable, "-m", "autograder", "verify", str(path)]
    refused = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/no"}, timeout=100)
    assert refused.returncode != 0
    assert "apt install bubblewrap" in refused.stderr


def test_no_process_is_left(graded: tuple[Path, Run]) -> None:
    left = [p for p in psutil.Process().children(recursive=True) if "bwrap" in p.name()]
    assert len(left) <= 2, "only the session's own harness may have a sandbox"
