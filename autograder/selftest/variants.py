"""Wrong answers derived from the references, edit by edit: each loses points, or it is written down why not.

They are edits of our own code, so they run without a sandbox, each until it has lost a property: the cases in
groups that share a job, and an error or a deadlock ends it. How long a group may take is measured on the
reference.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from autograder.grade.reference import all_cases, graded_submission, solved_cells
from autograder.selftest.edits import Edit, edits
from labkit.build.rules import BEGIN, END
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest
from labkit.checks.jobs import CouldNotBeGraded, JobFailure
from labkit.checks.judge import NOT_REACHED, judge_exercise
from labkit.checks.practice import run_on_host
from labkit.checks.report import Report
from labkit.checks.source.submission import Cell

SHORTEST, SLOWER = 8.0, 4.0  # seconds a group of cases may take at least, and times what the reference takes
SEED = 1

Fate = Literal["lost", "error", "hung", "survived"]


@dataclass(frozen=True)
class Variant:
    """The reference of an exercise with one edit."""

    exercise: str
    edit: Edit

    def __str__(self) -> str:
        """As a survivor is written down in the lesson's file, without the sentence."""
        return (
            f"# {self.edit.operator}\n[[survivor]]\nexercise = {json.dumps(self.exercise)}\n"
            f'was = {json.dumps(self.edit.was)}\nbecomes = {json.dumps(self.edit.becomes)}\nbecause = ""'
        )


@dataclass(frozen=True)
class Tried:
    """What became of a variant. by: the property it lost first, or what ended it."""

    variant: Variant
    fate: Fate
    by: str = ""


class ReferenceFails(RuntimeError):
    """A reference loses points on this machine, so nothing can be said of its variants."""


@cache
def variants(exercise: str) -> tuple[Variant, ...]:
    """Every single edit of the lines a student writes in the reference of an exercise."""
    found: dict[str, Edit] = {}
    for cell in solved_cells(exercise[:2]):
        if cell.exercise == exercise:
            for first, last in _solutions(cell.source):
                found |= {edit.source: edit for edit in edits(cell.source, first, last)}
    return tuple(Variant(exercise, edit) for edit in found.values())


def try_variants(wanted: Sequence[Variant], jobs: int) -> Iterator[Tried]:
    """What becomes of each, `jobs` at a time, as they are done. ReferenceFails before any is tried."""
    by_exercise: dict[str, list[Variant]] = defaultdict(list)
    for variant in wanted:
        by_exercise[variant.exercise].append(variant)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            tracks = dict(zip(by_exercise, pool.map(Track, by_exercise), strict=True))
            waiting = [
                pool.submit(tracks[exercise].run, variant)
                for exercise, found in by_exercise.items()
                for variant in found
            ]
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


class Track:
    """The cases of an exercise in the order variants run them, and how long each group may take."""

    def __init__(self, exercise: str) -> None:
        self.exercise = registry.exercise(exercise)
        self.groups = _groups(self.exercise)
        self.deadlines: list[float] = []
        for cases in self.groups:
            begin = time.monotonic()
            report = _report(self.exercise, solved_cells(exercise[:2]), cases, _Job(deadline=1e9))
            if _lost(report):
                raise ReferenceFails(f"{exercise}: the reference loses points on this machine\n{report!r}")
            self.deadlines.append(max(SHORTEST, SLOWER * (time.monotonic() - begin)))

    def run(self, variant: Variant) -> Tried:
        """Run the groups until one tells the variant from the reference."""
        cells = with_source(self.exercise, variant.edit.source)
        for cases, deadline in zip(self.groups, self.deadlines, strict=True):
            try:
                report = self._patient(cells, cases, deadline)
            except _Ended as ended:
                by_error = ended.verdict in ("error", "not_attempted")
                return Tried(variant, "error" if by_error else "hung", ended.verdict)
            lost = _lost(report)
            if lost:
                return Tried(variant, "error" if report.verdict == "error" else "lost", lost[0])
        return Tried(variant, "survived")

    def _patient(self, cells: tuple[Cell, ...], cases: list[Case], deadline: float) -> Report:
        """Once more with twice the time where that alone was missing: the host may be busy with others. A
        deadlock is told by who waits for whom, and tried once.
        """
        try:
            return _report(self.exercise, cells, cases, _Job(deadline))
        except _Ended as ended:
            if ended.verdict != "timeout":
                raise
            return _report(self.exercise, cells, cases, _Job(deadline, times=2.0))


class _Ended(Exception):
    """A job of a variant did not run to its end."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


@dataclass(frozen=True)
class _Job:
    """Runs a request on this host's ranks, for at most `deadline` seconds or as long as it asks for, either
    taken `times` times.
    """

    deadline: float
    times: float = 1.0

    def __call__(self, directory: Path, request: RunRequest) -> JobFailure | None:
        timeout = self.times * min(request.timeout, self.deadline)
        failure = run_on_host(directory, replace(request, timeout=timeout))
        if failure is not None and failure.verdict != "could_not_be_graded":
            raise _Ended(failure.verdict)
        return failure


def with_source(exercise: Exercise, source: str) -> tuple[Cell, ...]:
    """The solved notebook with another text in the cell of one exercise."""
    return tuple(
        replace(cell, source=source) if cell.exercise == exercise.id else cell
        for cell in solved_cells(exercise.lesson)
    )


def _report(exercise: Exercise, cells: Iterable[Cell], cases: list[Case], job: _Job) -> Report:
    """Graded on these cases; once more where the host failed."""
    submission, own_parts = graded_submission(tuple(cells), exercise)
    try:
        return judge_exercise(exercise, cases, submission, own_parts, job)
    except CouldNotBeGraded:
        return judge_exercise(exercise, cases, submission, own_parts, job)


def _lost(report: Report) -> list[str]:
    """Properties worth points that evidence speaks against."""
    return [r.name for r in report.rows if not r.passed and r.max_points and NOT_REACHED not in r.seen]


def _groups(exercise: Exercise) -> list[list[Case]]:
    """Cases that share a job: the visible ones first, and those with the most cases, which tell the most."""
    by_ranks: dict[tuple[bool, int], list[Case]] = defaultdict(list)
    for case in all_cases(exercise, SEED):
        by_ranks[case.hidden, case.ranks].append(case)
    order = sorted(by_ranks, key=lambda key: (key[0], key[1] == 1, -len(by_ranks[key]), key[1]))
    return [by_ranks[key] for key in order]


def regions(cell: Cell) -> list[str]:
    """What a student writes in a cell, to the letter: edits are written down with their lines' comments."""
    lines = cell.source.split("\n")
    return ["\n".join(lines[first:last]) for first, last in _solutions(cell.source)]


def _solutions(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each solution in a cell."""
    first = 0
    for number, line in enumerate(source.split("\n"), 1):
        if line.strip() == BEGIN:
            first = number
        elif line.strip() == END:
            yield first, number
