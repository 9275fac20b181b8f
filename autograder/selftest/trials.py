"""Grades what must pass and what must not: references, stubs, an empty notebook, and every wrong answer."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import Lock

from autograder.grade.evidence import Baseline
from autograder.grade.harness import Graded, Harness, hidden_files
from autograder.grade.reference import all_cases, solved_cells, stub_cells
from autograder.sandbox.sandbox import Sandbox
from autograder.selftest.alternatives import alternatives
from autograder.selftest.wrong_answers import WrongAnswer, wrong_answers
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.judge import NOT_REACHED
from labkit.checks.practice import check_cells
from labkit.checks.source.submission import Cell


@dataclass(frozen=True)
class Trial:
    """One thing to grade. must_fail: properties it must lose; None when it must earn all points.

    verdict: what the verdict must be, where that is part of the trial. says: the mistake, for a wrong
    answer; keeps: why it may keep most points. about: the properties whose cases it is graded on; all cases
    without any.
    """

    name: str
    exercise: Exercise
    cells: tuple[Cell, ...]
    seed: int
    must_fail: tuple[str, ...] | None
    verdict: str = ""
    says: str = ""
    about: tuple[str, ...] = ()
    keeps: str = ""


@dataclass(frozen=True)
class Row:
    """A trial and what came of it."""

    trial: Trial
    graded: Graded

    @property
    def lost(self) -> list[str]:
        """Properties that evidence speaks against; not those that no case of the trial was about."""
        rows = [row for row in self.graded.report.rows if not row.passed]
        return [row.name for row in rows if NOT_REACHED not in row.seen]

    @property
    def told(self) -> str:
        """What was lost, in words."""
        return f"lost {', '.join(self.lost)}" if self.lost else "lost nothing"

    @property
    def ok(self) -> bool:
        """Whether it got its verdict and all points, or lost at least what it breaks."""
        report, trial = self.graded.report, self.trial
        if report.verdict == "could_not_be_graded" or (trial.verdict and report.verdict != trial.verdict):
            return False
        if trial.must_fail is None:
            return report.points == report.max_points and not self.graded.flags
        return set(trial.must_fail) <= set(self.lost)

    def __str__(self) -> str:
        report = self.graded.report
        mark = "ok  " if self.ok else "FAIL"
        flags = "".join(f"; flagged: {flag}" for flag in self.graded.flags) if not self.ok else ""
        points = f"{report.points:g}/{report.max_points:g}"
        about = f"{report.exercise:<32} {self.trial.name:<30} {points:>6}"
        return f"{mark} {about} {report.verdict}: {self.told}{flags}"


class NoWrongAnswers(ValueError):
    """An exercise without wrong answers is an exercise whose check nobody has tried to fool."""


def trials(lesson: str, seeds: Sequence[int], only: Sequence[str] = ()) -> list[Trial]:
    """Everything a lesson is tried with, or its exercises called `only`. NoWrongAnswers when one has none."""
    exercises = [e for e in registry.exercises(lesson) if not only or e.id in only]
    found = [answer for answer in wrong_answers(lesson) if not only or answer.exercise in only]
    without = [e.id for e in exercises if e.id not in {answer.exercise for answer in found}]
    if without:
        folders = f"autograder/lessons/lesson_{lesson[:2]}/wrong/"
        raise NoWrongAnswers(
            f"no wrong answers to {', '.join(without)}: write some to {folders} with `autograder wrong write`"
        )
    right = [trial for trial in of_alternatives(lesson, seeds[0]) if trial.exercise in exercises]
    wrong = [_wrong(lesson, answer, seeds[0]) for answer in found]
    return [*_honest(lesson, exercises, seeds), *right, *wrong]


def of_alternatives(lesson: str, seed: int) -> Iterator[Trial]:
    """Other right answers, each in its own exercise and in those that build on it."""
    for answer in alternatives(lesson):
        for exercise in answer.graded:
            name = f"alternative {answer.name}"
            yield Trial(name, exercise, answer.cells, seed, None, "passed")


def run_trials(wanted: Sequence[Trial], sandbox: Sandbox, jobs: int) -> Iterator[Row]:
    """Grade each trial, `jobs` at a time; yields rows as they are done.

    Lesson by lesson, as students are graded, because what is hidden from one lesson another may need.
    Sandboxes are kept from trial to trial of a lesson.
    """
    for lesson in dict.fromkeys(trial.exercise.lesson for trial in wanted):
        yield from _run_lesson([t for t in wanted if t.exercise.lesson == lesson], sandbox, jobs)


def _run_lesson(wanted: Sequence[Trial], sandbox: Sandbox, jobs: int) -> Iterator[Row]:
    free: queue.SimpleQueue[Harness] = queue.SimpleQueue()
    sent = _SentByReferences()
    hide = hidden_files([trial.exercise for trial in wanted])
    with ExitStack() as harnesses:
        for _ in range(jobs):
            free.put(harnesses.enter_context(Harness(sandbox, hide)))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(_grade, trial, free, sent) for trial in wanted]):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def run_in_practice(wanted: Sequence[Trial], jobs: int) -> Iterator[Row]:
    """The visible cases of each trial as a student runs them, with their own answers throughout."""

    def run(trial: Trial) -> Row:
        return Row(trial, Graded(check_cells(trial.exercise, list(trial.cells))))

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in as_completed([pool.submit(run, trial) for trial in wanted]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def kill_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for every row, those that went wrong last, and one that counts them."""
    for row in sorted(rows, key=lambda row: (not row.ok, row.trial.exercise.id, row.trial.name)):
        yield str(row)
    of_mistakes = [row for row in rows if row.trial.says]
    yield (
        f"{sum(row.ok for row in of_mistakes)} of {len(of_mistakes)} wrong answers lost what they break; "
        f"{sum(row.ok for row in rows)} of {len(rows)} trials as they must be"
    )


class _SentByReferences:
    """What students' work is held against: the traffic of a reference in the same cases, in a run of its own,
    made when it is first asked for.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Baseline] = {}
        self._making: defaultdict[tuple[str, int], Lock] = defaultdict(Lock)

    def of(self, trial: Trial, harness: Harness) -> Baseline:
        """For a trial on all cases."""
        key = (trial.exercise.id, trial.seed)
        with self._making[key]:
            if key not in self._made:
                cells = solved_cells(trial.exercise.lesson)
                run = harness.grade(trial.exercise, cells, trial.seed, _cases(trial))
                self._made[key] = Baseline.of(run.jobs)
            return self._made[key]


def _grade(trial: Trial, free: queue.SimpleQueue[Harness], sent: _SentByReferences) -> Row:
    harness = free.get()
    try:
        graded = harness.grade(trial.exercise, trial.cells, trial.seed, _cases(trial))
        if trial.must_fail is None and graded.jobs:
            harness.cross_check(graded, trial.exercise, trial.seed, sent.of(trial, harness))
        return Row(trial, graded)
    finally:
        free.put(harness)


def _cases(trial: Trial) -> list[Case]:
    cases = all_cases(trial.exercise, trial.seed)
    if not trial.about:
        return cases
    return [case for case in cases if set(trial.exercise.looked_at_in(case)) & set(trial.about)]


def _honest(lesson: str, exercises: Sequence[Exercise], seeds: Sequence[int]) -> Iterator[Trial]:
    reference, stubs = solved_cells(lesson), stub_cells(lesson)
    for exercise in exercises:
        everything = tuple(p.name for p in exercise.properties)
        for seed in seeds:
            yield Trial(f"reference, seed {seed}", exercise, reference, seed, None, "passed")
        yield Trial("stub", exercise, stubs, seeds[0], everything, "not_attempted")
        yield Trial("empty notebook", exercise, (), seeds[0], everything, "not_attempted")


def _wrong(lesson: str, answer: WrongAnswer, seed: int) -> Trial:
    exercise = registry.exercise(answer.exercise)
    for name in answer.breaks:
        exercise.property(name)
    cells = tuple(
        replace(c, source=answer.apply(c.source)) if c.exercise == answer.exercise else c
        for c in solved_cells(lesson)
    )
    return Trial(
        answer.id, exercise, cells, seed, answer.breaks, "", answer.says, answer.breaks, answer.keeps
    )
