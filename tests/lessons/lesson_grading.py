"""A lesson's notebook graded as a student's is, with one cell changed: what the lessons' tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autograder.grade.reference import graded_submission, solved_cells
from autograder.selftest.outcomes import Outcomes
from autograder.selftest.trials import Trial
from autograder.selftest.wrong_answers import wrong_answers
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.judge import NOT_REACHED, judge_exercise
from labkit.checks.practice import run_on_host
from labkit.checks.report import Report
from labkit.checks.source.submission import Cell

ON_RECORD = "on record in benchmarks/results/trials as it is now"


def is_on_record(trial: Trial) -> bool:
    """Whether this passed in a sandbox, on all cases, as it and its checks are now."""
    return Outcomes(trial.exercise.lesson, "bubblewrap").of(trial) is not None


def graded(exercise: Exercise, cells: list[Cell], cases: list[Case]) -> Report:
    """The report of these cells on these cases."""
    submission, own_parts = graded_submission(cells, exercise)
    return judge_exercise(exercise, cases, submission, own_parts, run_on_host)


def solved_but(exercise: Exercise, change: Callable[[str], str]) -> list[Cell]:
    """The solved notebook with the source of one exercise's cell changed."""
    return [
        replace(cell, source=change(cell.source)) if cell.exercise == exercise.id else cell
        for cell in solved_cells(exercise.lesson)
    ]


def report_of(lesson: str, answer_id: str, exercise: Exercise | None = None, *cases: str) -> Report:
    """The report of a wrong answer's exercise, or of another one, on its visible cases or those named."""
    broken = next(m for m in wrong_answers(lesson) if m.id == answer_id)
    of_answer = registry.exercise(broken.exercise)
    exercise = exercise or of_answer
    wanted = [case for case in exercise.cases(1) if not cases or case.name in cases]
    return graded(exercise, solved_but(of_answer, broken.apply), wanted)


def lost(report: Report) -> set[str]:
    """The properties that evidence speaks against."""
    return {row.name for row in report.rows if not row.passed and NOT_REACHED not in row.message}
