"""Submissions graded in a minute, against stock `nbgrader autograde` of a notebook that runs the same cases
by torchrun.

    python benchmarks/grading.py [--json] [--submissions 20] [--stock 1] [--large 0]

Both grade lesson 06, solved, with the same visible and unseen cases. Stock nbgrader grades one after the
other and each costs the same, so a few stand for many; ours are really graded. Then one solved submission of
every lesson, alone, and one exercise with each of its ranks in a place of its own against the same ranks with
one place for all. With `--large 200` also so many as a class hands in, with one exercise solved in each,
against a few of the same: what grows is what is done once a submission, not the ranks.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import nbformat
from _common import Row, arguments, report
from nbformat.v4 import new_code_cell

from autograder.batch.run import conditions_for, grade_course, remember
from autograder.batch.submissions import auto_jobs
from autograder.grade.harness import Harness
from autograder.grade.records import Record, load_all
from autograder.grade.reference import graded_lessons, lesson_source, solved_cells
from autograder.gradebook.course import Course, init_course
from autograder.sandbox.bubblewrap import Bubblewrap, find
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import Limits
from labkit.build.course import instructor_notebook
from labkit.checks import registry

LESSON = "06_tensor_parallel_ffn"
SEED = 11
APART, ROUNDS = "06.row-parallel-linear", 3
REPOSITORY = Path(__file__).resolve().parent.parent

# What a stock course would have beside its notebooks: run the cases with torchrun, compare, raise.
STOCK_CHECK = '''
import subprocess, sys
from pathlib import Path
from autograder.grade.reference import all_cases
from labkit.checks import registry
from labkit.checks.jobs import JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.source.notebook import cells_of_history, collect_exercise

RANK = """
import sys
from pathlib import Path
import torch.distributed as dist
from labkit.checks.execute import run_rank
from labkit.record.current import use_recorder
from labkit.record.recorder import Recorder, install
from labkit.record.state import StatePage
dist.init_process_group("gloo")
recorder = Recorder(dist.get_rank(), StatePage(Path(sys.argv[1]) / f"state{dist.get_rank()}", create=True))
use_recorder(recorder)
install(recorder)
run_rank(sys.argv[1])
dist.destroy_process_group()
"""

def run_job(directory, request):
    script = Path(directory) / "rank.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={request.ranks}", str(script), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else JobFailure("error", done.stderr[-2000:])

def check(exercise_id, history):
    exercise = registry.exercise(exercise_id)
    submission = collect_exercise(cells_of_history(list(history)), exercise)
    report = judge_exercise(exercise, all_cases(exercise, SEED), submission, submission, run_job)
    assert report.passed, report
'''


def main() -> None:
    options = _options()
    # nbgrader's own use of its database, as in autograder/cli.py
    warnings.filterwarnings("ignore", message="Object of type .* not in session")
    with tempfile.TemporaryDirectory(prefix="bench-grading-") as name:
        stock_seconds = _stock(Path(name) / "stock", options.stock)
        ours_seconds, memory = _ours(Path(name) / "ours", options.submissions, _solved(LESSON))
        rows = [
            _rate("submissions a minute", options.submissions / ours_seconds, options.stock / stock_seconds)
        ]
        each, theirs = ours_seconds / options.submissions, stock_seconds / options.stock
        rows.append(Row("one submission, five exercises", each, theirs, "s", theirs / each, None, "nbgrader"))
        rows.append(Row("memory of the grading process", memory, None, "MiB", None, None))
        rows += [_alone(Path(name) / "alone", lesson) for lesson in graded_lessons()]
        rows.append(_kept_apart())
        if options.large:
            rows += _growth(Path(name), options.submissions, options.large)
    report("grading", rows, options.json)


def _rate(name: str, ours: float, peer: float) -> Row:
    return Row(name, 60 * ours, 60 * peer, "1/min", ours / peer, 15.0, "nbgrader")


def _alone(folder: Path, lesson: str) -> Row:
    """One full submission of a lesson, from its sandbox's start to its feedback page."""
    seconds, _ = _ours(folder / lesson, 1, _solved(lesson), lesson, known_reference=True)
    what = f"one submission of {lesson}, {len(registry.exercises(lesson[:2]))} exercises"
    return Row(what, seconds, None, "s", None, None)


class Together(Bubblewrap):
    """The sandbox as it would be if ranks were not kept apart in it."""

    apart = False


def _kept_apart() -> Row:
    """What it costs to keep ranks apart: one exercise of several jobs, in sandboxes that have started."""
    exercise, cells = registry.exercise(APART), solved_cells("06")
    seconds: dict[str, list[float]] = {"apart": [], "together": []}
    kind = find(Limits())
    with Harness(kind) as apart, Harness(Together(bwrap=kind.bwrap)) as together:
        for number in range(ROUNDS + 1):
            for name, harness in (("apart", apart), ("together", together)):
                started = time.perf_counter()
                graded = harness.grade(exercise, cells, SEED)
                assert graded.report.passed, graded.report
                seconds[name] += [time.perf_counter() - started] if number else []  # the first one starts it
    ours, theirs = (statistics.median(seconds[name]) for name in ("apart", "together"))
    return Row(f"{APART}, ranks kept apart", ours, theirs, "s", theirs / ours, None, "not apart")


def _growth(folder: Path, few: int, many: int) -> list[Row]:
    """One submission of many against one of few. ratio: how many times cheaper one of many is."""
    only = next(iter(registry.exercises("06"))).id
    each, memory = {}, {}
    for count in (few, many):
        solved = _solved(LESSON, only)
        seconds, memory[count] = _ours(folder / str(count), count, solved, known_reference=True)
        each[count] = seconds / count
    what = f"one submission of {many} against one of {few}, one exercise"
    return [
        Row(what, each[many], each[few], "s", each[few] / each[many], None, "autograder"),
        Row(f"memory of the grading process after {many}", memory[many], memory[few], "MiB", None, None),
    ]


def _solved(lesson: str, only: str = "") -> nbformat.NotebookNode:
    """A lesson with everything solved, or one exercise."""
    notebook = instructor_notebook(lesson_source(lesson[:2]))
    if only:
        exercises = (cell.metadata.get("labkit", {}).get("exercise", only) for cell in notebook.cells)
        notebook.cells = [c for c, of in zip(notebook.cells, exercises, strict=True) if of == only]
    return notebook


def _ours(
    root: Path, count: int, solved: nbformat.NotebookNode, lesson: str = LESSON, known_reference: bool = False
) -> tuple[float, float]:
    """Seconds for `autograder grade` of `count` such notebooks, everything included; MiB at the end.

    known_reference: without the one run of the reference solution that precedes the first submission.
    """
    init_course(root)
    for number in range(count):
        path = root / "submitted" / f"student{number:03d}" / lesson / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(solved, path)
    course = Course(root)
    if known_reference:
        remember(course, lesson, SEED, False)
        conditions_for(course, lesson, lambda unsafe: find_sandbox())
    started = time.perf_counter()
    run = grade_course(course, lesson, auto_jobs(), SEED, False, lambda unsafe: find_sandbox())
    seconds = time.perf_counter() - started
    assert len(run.graded) == count, run
    there = {cell.metadata.get("labkit", {}).get("exercise") for cell in solved.cells}
    all_points = sum(e.max_points for e in registry.exercises(lesson[:2]) if e.id in there)
    records = load_all(root, lesson)
    assert [r.points for r in records] == [all_points] * count, "\n".join(_losses(records))
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _losses(records: Sequence[Record]) -> list[str]:
    """What solved submissions did not earn, and why."""
    losses = []
    for record in records:
        for exercise, graded in record.graded.items():
            tried = graded.report.verdict != "not_attempted"
            lost = [row for row in graded.report.rows if tried and not row.passed]
            losses += [f"{record.student} {exercise} {row.name}: {row.seen}" for row in lost]
            losses += [f"{record.student} {exercise}: {flag}" for flag in graded.flags]
    return losses


def _stock(root: Path, count: int) -> float:
    """Seconds for stock `nbgrader autograde` of `count` solved notebooks with a test cell an exercise."""
    source = root / "source" / LESSON
    source.mkdir(parents=True)
    (root / "nbgrader_config.py").write_text("c = get_config()\nc.Execute.timeout = 3000\n")
    notebook = instructor_notebook(lesson_source("06"))
    notebook.cells = [
        c for c in notebook.cells if c.metadata.get("labkit", {}).get("exercise") or _imports(c)
    ]
    notebook.cells += [_test_cell(exercise.id) for exercise in registry.exercises("06")]
    nbformat.write(notebook, source / f"{LESSON}.ipynb")
    (source / "stock_check.py").write_text(f"SEED = {SEED}\n{STOCK_CHECK}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PATH": _path(),
        "JUPYTER_PREFER_ENV_PATH": "1",
    }

    def nbgrader(*words: str) -> None:
        subprocess.run(["nbgrader", *words], cwd=root, env=environment, check=True, capture_output=True)

    nbgrader("generate_assignment", LESSON)
    for number in range(count):
        submitted = root / "submitted" / f"student{number}" / LESSON
        submitted.mkdir(parents=True)
        nbformat.write(notebook, submitted / f"{LESSON}.ipynb")
    started = time.perf_counter()
    nbgrader("autograde", LESSON)
    nbgrader("generate_feedback", LESSON)
    seconds = time.perf_counter() - started
    _assert_full_points(root, count)
    return seconds


def _assert_full_points(root: Path, count: int) -> None:
    """A peer that graded nothing would be quick too."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
        for number in range(count):
            submission = gradebook.find_submission(LESSON, f"student{number}")
            assert submission.score == submission.max_score == len(registry.exercises("06")), submission.score


def _test_cell(exercise_id: str) -> nbformat.NotebookNode:
    cell = new_code_cell(f'from stock_check import check\n\ncheck("{exercise_id}", In)')
    name = "test_" + exercise_id.replace(".", "_")
    cell.metadata.nbgrader = {
        "grade": True,
        "grade_id": name,
        "locked": True,
        "schema_version": 3,
        "points": 1,
        "solution": False,
        "task": False,
    }
    return cell


def _imports(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and cell.source.lstrip().startswith("import") and "labkit" in cell.source


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--submissions", type=int, default=20)
    parser.add_argument("--stock", type=int, default=1)
    parser.add_argument("--large", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
