"""Checks in a notebook: the visible cases, on this host's ranks, with the student's own versions
throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest
from labkit.checks.hidden import rules
from labkit.checks.jobs import JobFailure
from labkit.checks.judge import judge_exercise
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.notebook import collect_exercise, live_cells, read_cells
from labkit.checks.source.submission import Cell

VISIBLE_SEED = (
    1  # the visible cases are the same on every run, so that a number seen once can be looked for again
)


def check(exercise_id: str, *made: object) -> Report:
    """Run an exercise's visible cases on ranks and show which properties hold.

    made: what the exercise asked for (a class, or functions), defined in this notebook. The source is
        collected from the cells executed so far, exactly as grading collects it from the saved notebook.
    """
    exercise = registry.exercise(exercise_id)
    if len(made) != len(exercise.names):
        raise TypeError(
            f"{exercise_id} checks {', '.join(exercise.names)}: expected {len(exercise.names)} after the id"
        )
    report = check_cells(exercise, live_cells(made[0]))
    Scores.of_this_kernel().keep(report)
    return report


def check_cells(exercise: Exercise, cells: list[Cell]) -> Report:
    """The visible cases of one exercise, for code given as cells."""
    submission = collect_exercise(cells, exercise)
    report = judge_exercise(exercise, exercise.cases(VISIBLE_SEED), submission, submission, run_on_host)
    told = rules(exercise)
    report.notes += [told] if told and not report.passed else []
    return report


def validate(path: Path, on_report: Callable[[Report], None] = lambda report: None) -> list[Report]:
    """Check every exercise of a saved notebook, reading it as the grader will. BadNotebook when it cannot
    be read.

    on_report: called with each exercise's report as soon as it is there.
    """
    cells = [replace(cell, parsed=cell.read()) for cell in read_cells(path)]
    problems = [cell.parsed.problem for cell in cells if cell.parsed and cell.parsed.problem]
    reports = []
    for exercise in exercises_of(path):
        reports.append(check_cells(exercise, cells))
        reports[-1].notes += [] if reports[-1].passed else problems
        on_report(reports[-1])
    return reports


def exercises_of(path: Path) -> tuple[Exercise, ...]:
    """The exercises of the lesson a notebook belongs to: its name begins with the lesson's two digits."""
    for part in (path.stem, path.resolve().parent.name):
        if part[:2].isdigit():
            return registry.exercises(part[:2])
    raise registry.UnknownExercise(
        f"{path.name}: expected a name that begins with the lesson's number (06_tensor_parallel_ffn.ipynb)"
    )


def run_on_host(directory: Path, request: RunRequest) -> JobFailure | None:
    """Run a request as a job of `labkit.launch`, and say how it failed if it did."""
    from labkit.checks.execute import run_rank
    from labkit.launch import LaunchError
    from labkit.launch.api import start
    from labkit.launch.handover.request import Wanted

    try:
        imports = [run_rank.__module__, registry.module_of(request.exercise)]
        wanted = Wanted(request.ranks, "gloo", request.timeout, imports=imports)
        start(run_rank, (str(directory),), wanted=wanted).wait()
    except LaunchError as error:
        verdict = "could_not_be_graded" if error.verdict == "infrastructure" else error.verdict
        return JobFailure(verdict, str(error))
    return None


class Scores:
    """The latest report of each exercise checked by this kernel."""

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}

    @staticmethod
    def of_this_kernel() -> Scores:
        """The one all cells of this kernel share."""
        return _KERNEL_SCORES

    def keep(self, report: Report) -> None:
        self.reports[report.exercise] = report

    def row(self, exercise_id: str, property_name: str) -> PropertyResult | None:
        report = self.reports.get(exercise_id)
        return report.row(property_name) if report else None


_KERNEL_SCORES = Scores()
