"""Everything that tries the checks and takes long, in one run that is written down when it has passed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from autograder.grade.reference import REPOSITORY
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import NoSandbox, Sandbox
from autograder.selftest.alternatives import alternatives
from autograder.selftest.systematic import run_all
from autograder.selftest.trials import Row, kill_table, run_trials, trials
from labkit.whole_file import write_whole

FILE = REPOSITORY / "benchmarks" / "results" / "thorough.json"
KINDS = ("bubblewrap", "apptainer")
MOST = 0.8  # of an exercise's points: a wrong answer that keeps more is listed
SPECIAL = "right but in special cases, which have points of their own"
Show = Callable[[str], None]


class Passed(msgspec.Struct):
    """A run in which everything was as it must be. sandboxes: those under which right answers were graded.

    keep_most: wrong answers that keep most points of their exercise -> points kept, points there are, and why
    that is fair: empty where nobody has said.
    by_error_alone: how many wrong answers end in an error, which proves little about a check.
    """

    date: str
    host: str
    minutes: float
    sandboxes: list[str]
    wrong_answers: int
    by_error_alone: int
    keep_most: dict[str, tuple[float, float, str]]


def run_everything(exercises: Sequence[str], jobs: int, show: Show) -> bool:
    """Variants, right and wrong answers of these exercises; writes `thorough.json` when all is well."""
    begin = time.monotonic()
    lessons = list(dict.fromkeys(name[:2] for name in exercises))
    sandboxes = dict(_sandboxes(show))
    everything = [trial for lesson in lessons for trial in trials(lesson, [1])]
    right = [_practised(lesson, show) for lesson in lessons]
    for number, (kind, sandbox) in enumerate(sandboxes.items()):
        show(f"self-test under {kind}")
        wanted = [trial for trial in everything if not (number and trial.says)]
        right.append(kill_table(list(run_trials(wanted, sandbox, jobs)), show))
    mistakes = [replace(trial, about=()) for trial in everything if trial.says]
    earned = list(run_trials(mistakes, next(iter(sandboxes.values())), jobs))
    for line in told(earned):
        show(line)
    passed = run_all(exercises, jobs, show) and all(right)
    if passed:
        write_whole(FILE, _written(list(sandboxes), earned, (time.monotonic() - begin) / 60))
    return passed


def told(earned: Sequence[Row]) -> Iterator[str]:
    """What wrong answers earn on all cases, those that keep most last."""
    for row in sorted(earned, key=_share):
        report = row.graded.report
        points = f"{report.points:>4g}/{report.max_points:<4g}"
        keeps = f" ({fair(row)})" if _share(row) > MOST and fair(row) else ""
        yield f"{points} {report.exercise:<32} {row.trial.name}: {row.told}{keeps}"
    high = [row for row in earned if _share(row) > MOST]
    silent, by_error = sum(not fair(row) for row in high), sum(map(_by_error, earned))
    yield (
        f"{len(high)} of {len(earned)} wrong answers keep more than {MOST:.0%}, {silent} of them without a "
        f"word why that is fair; {by_error} end in an error"
    )


def _sandboxes(show: Show) -> Iterator[tuple[str, Sandbox]]:
    """Every kind that works here. NoSandbox where none does."""
    find_sandbox()
    for kind in KINDS:
        try:
            yield kind, find_sandbox(kind=kind)
        except NoSandbox as problem:
            show(f"not under {kind}: {problem}")


def _practised(lesson: str, show: Show) -> bool:
    """Whether every alternative of a lesson earns all points as a student runs it."""
    reports = [(a.name, report) for a in alternatives(lesson) for report in a.practised()]
    for name, report in reports:
        if not report.passed:
            show(f"alternative {name} in practice:\n{report!r}")
    return all(report.passed for _, report in reports)


def fair(row: Row) -> str:
    """Why a wrong answer may keep most points: what its file says, or that it is wrong in special cases
    alone, which have points of their own. Empty where neither is so.
    """
    kinds = {row.trial.exercise.property(name).kind for name in row.lost}
    return row.trial.keeps or (SPECIAL if kinds == {"robustness"} else "")


def _share(row: Row) -> float:
    return row.graded.report.points / row.graded.report.max_points


def _by_error(row: Row) -> bool:
    return row.graded.report.verdict == "error"


def _written(sandboxes: list[str], earned: Sequence[Row], minutes: float) -> bytes:
    high = {f"{r.trial.exercise.id} {r.trial.name}": r for r in earned if _share(r) > MOST}
    reports = {name: (row.graded.report, fair(row)) for name, row in sorted(high.items())}
    passed = Passed(
        datetime.now(UTC).isoformat(timespec="minutes"),
        platform.node(),
        round(minutes, 1),
        sandboxes,
        len(earned),
        sum(map(_by_error, earned)),
        {name: (r.points, r.max_points, keeps) for name, (r, keeps) in reports.items()},
    )
    return msgspec.json.format(msgspec.json.encode(passed), indent=1) + b"\n"
