"""Checks in a notebook: the visible cases, on this host's ranks, with the student's own versions
throughout.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.explained import explain
from labkit.checks.files import RunRequest
from labkit.checks.handed import about_other_origins, expect_what_is_asked_for
from labkit.checks.hidden import rules
from labkit.checks.jobs import CouldNotBeGraded, JobFailure, RunJob
from labkit.checks.judge import judge_exercise
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.notebook import collect_exercise, live_cells, read_cells
from labkit.checks.source.submission import Cell, Submission
from labkit.checks.waiting import WaitingLine

if TYPE_CHECKING:
    from labkit.launch import LaunchError
    from labkit.launch.job import Watcher

VISIBLE_SEED = (
    1  # the visible cases are the same on every run, so that a number seen once can be looked for again
)


def check(exercise_id: str, *made: object) -> Report:
    """Run an exercise's visible cases on ranks and show which properties hold.

    made: what the exercise asked for (a class, or functions), defined in this notebook. The source is
        collected from the cells executed so far, exactly as grading collects it from the saved notebook.

    Raises TypeError for a call that cannot be meant, UnknownExercise for an id that is none, BadNotebook
    where there is no source, and CouldNotBeGraded where it is this machine that failed.
    """
    exercise = _asked_for(exercise_id, made)
    submission = collect_exercise(live_cells(made[0]), exercise)
    with contextlib.closing(WaitingLine(exercise_id)) as line:
        report = _checked(exercise, submission, _run_and_tell(line))
    report.notes[:0] = about_other_origins(exercise, made, submission)
    scores = Scores.of_this_kernel()
    scores.keep(report)
    report.notes += about_earlier(exercise, report, scores.reports)
    return report


def _asked_for(exercise_id: str, made: Sequence[object]) -> Exercise:
    if not isinstance(exercise_id, str):
        raise TypeError(
            "expected the exercise's id first, in quotes, and then what you wrote, as in the check cell that "
            f"is given; found {getattr(exercise_id, '__name__', repr(exercise_id))[:80]}"
        )
    exercise = registry.exercise(exercise_id)
    expect_what_is_asked_for(exercise, made)
    return exercise


def _run_and_tell(line: WaitingLine) -> RunJob:
    """`run_on_host`, and a line on what it waits for."""
    return lambda directory, request: run_on_host(
        directory, request, watch=line.watcher(request.ranks, request.timeout)
    )


def check_cells(exercise: Exercise, cells: list[Cell]) -> Report:
    """The visible cases of one exercise, for code given as cells."""
    return _checked(exercise, collect_exercise(cells, exercise), run_on_host)


def _checked(exercise: Exercise, submission: Submission, run_job: RunJob) -> Report:
    with _room_for_files():
        report = judge_exercise(exercise, exercise.cases(VISIBLE_SEED), submission, submission, run_job)
    told = rules(exercise, registry.exercises(exercise.lesson))
    if report.verdict == "not_attempted":
        report.notes += submission.notes
    elif not report.passed:
        report.notes += [*([told] if told else []), *submission.notes]
        explain(report, exercise, submission)
    return report


@contextlib.contextmanager
def _room_for_files() -> Iterator[None]:
    """CouldNotBeGraded where what the ranks are handed finds no room on the disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not _lacks_room(error):
            raise
        told = f"there is no room for the check's files in {tempfile.gettempdir()}"
        hint = "free some space there, or set TMPDIR to a directory with room"
        raise CouldNotBeGraded(f"{told}: {hint}") from error


def _lacks_room(error: Exception) -> bool:
    """Whether a disk is full, or somebody's part of it; safetensors has nothing but a text to know it by."""
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))


def about_earlier(exercise: Exercise, report: Report, reports: Mapping[str, Report]) -> list[str]:
    """Which lost rows may be lost to the student's own answers to earlier exercises, and how grading goes on.

    reports: of the exercises checked so far, by id.
    """
    faulty = [name for name in exercise.builds_on if name in reports and not reports[name].passed]
    rows = [row.name for row in report.rows if not row.passed and not _on_own_parts(exercise, row.name)]
    if not faulty or not rows or report.verdict == "not_attempted":
        return []
    return [
        f"This used your own {_listed(faulty)}, where points are lost too: look there first. Grading puts "
        f"right ones in their place for {_listed(rows)}."
    ]


def _on_own_parts(exercise: Exercise, name: str) -> bool:
    """Whether grading too judges a property with the student's own earlier parts."""
    shown = [case for case in exercise.cases(VISIBLE_SEED) if name in exercise.shown_by(case)]
    return all(case.own_parts for case in shown)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def validate(
    path: Path,
    on_report: Callable[[Report], None] = lambda report: None,
    on_begin: Callable[[str, int, int], None] = lambda exercise, place, all_of_them: None,
) -> list[Report]:
    """Check every exercise of a saved notebook, reading it as the grader will. BadNotebook when it cannot
    be read, CouldNotBeGraded where it is this machine that failed.

    on_report: called with each exercise's report as soon as it is there. on_begin: called before that, with
        its id, its place from 1, and how many there are.
    """
    cells = [replace(cell, parsed=cell.read()) for cell in read_cells(path)]
    problems = [cell.parsed.problem for cell in cells if cell.parsed and cell.parsed.problem]
    reports: dict[str, Report] = {}
    exercises = exercises_of(path)
    for place, exercise in enumerate(exercises, 1):
        on_begin(exercise.id, place, len(exercises))
        report = reports[exercise.id] = check_cells(exercise, cells)
        report.notes += [] if report.passed else [*about_earlier(exercise, report, reports), *problems]
        on_report(report)
    return list(reports.values())


def exercises_of(path: Path) -> tuple[Exercise, ...]:
    """The exercises of the lesson a notebook belongs to: its name, or its folder's, begins with the lesson's
    two digits. 2024-06-01.ipynb and 10min.ipynb are names that somebody gave.
    """
    for part in (path.stem, path.resolve().parent.name):
        if re.match(r"\d\d(?![^\W_])", part, re.ASCII):
            return registry.exercises(part[:2])
    raise registry.UnknownExercise(
        f"{path.name}: expected a name that begins with the lesson's number (06_tensor_parallel_ffn.ipynb)"
    )


def run_on_host(
    directory: Path,
    request: RunRequest,
    backend: str = "gloo",
    device: str = "",
    watch: Watcher | None = None,
) -> JobFailure | None:
    """Run a request as a job of `labkit.launch`, and say how it failed if it did.

    device: as `run_rank` takes it. watch: as `Job.wait` takes it. An interrupt is no failure: JobCancelled
    says where ranks were.
    """
    from labkit.checks.execute import run_rank
    from labkit.launch import LaunchError
    from labkit.launch.api import start
    from labkit.launch.handover.request import Wanted

    imports = [run_rank.__module__, registry.module_of(request.exercise)]
    # Ranks on the CPU leave the GPUs alone: to wake CUDA takes each of them seconds.
    gpus = bool(device) or backend == "nccl"
    # What a rank keeps in a temporary folder goes with the check's own, also when the rank is ended.
    env = {"TMPDIR": str(directory)}
    try:
        wanted = Wanted(request.ranks, backend, request.timeout, env=env, imports=imports, gpus=gpus)
        job = start(run_rank, (str(directory), device), wanted=wanted)
    except LaunchError as error:
        return _failure(error)
    except (OSError, ValueError) as error:  # what is asked for is right: a folder or a setting here is not
        return JobFailure("could_not_be_graded", str(error))
    try:
        job.wait(watch)
    except LaunchError as error:
        return _failure(error)
    return None


def _failure(error: LaunchError) -> JobFailure:
    if error.diagnosis.reason == "interrupted":  # by the person, who waits for no other case either
        raise error
    machines = error.verdict == "infrastructure" or _lacks_room(error)
    return JobFailure("could_not_be_graded" if machines else error.verdict, str(error))


class Scores:
    """The latest report of each exercise checked by this kernel."""

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}

    @staticmethod
    def of_this_kernel() -> Scores:
        """The one all cells of this kernel share."""
        return _KERNEL_SCORES

    def keep(self, report: Report) -> None:
        """Make this the latest report of its exercise."""
        self.reports[report.exercise] = report

    def row(self, exercise_id: str, property_name: str) -> PropertyResult | None:
        """The latest result of a property; None when its exercise was not checked."""
        report = self.reports.get(exercise_id)
        return report.row(property_name) if report else None


_KERNEL_SCORES = Scores()
