"""Everything that tries the checks and takes long, in one run that is written down when it has passed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import msgspec

from autograder.grade.deciding import checks_digest
from autograder.grade.harness import Graded
from autograder.grade.reference import REPOSITORY
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import NoSandbox, Sandbox
from autograder.selftest.alternatives import Alternative, alternatives
from autograder.selftest.kept import Kept, key_of
from autograder.selftest.progress import told_now_and_then
from autograder.selftest.systematic import run_all
from autograder.selftest.trials import Row, Trial, kill_table, run_trials, trials
from labkit.checks.report import Report
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
    minutes: of the last run; before: results it took over from runs that were interrupted.
    """

    date: str
    host: str
    minutes: float
    before: int
    sandboxes: list[str]
    wrong_answers: int
    by_error_alone: int
    keep_most: dict[str, tuple[float, float, str]]


def run_everything(exercises: Sequence[str], jobs: int, show: Show) -> bool:
    """Variants, right and wrong answers of these exercises; writes `thorough.json` when all is well.

    What was as it must be is kept as it comes: a run that was interrupted, or in which something failed, is
    begun again and tries the rest.
    """
    kept, begin = Kept(), time.monotonic()
    before = len(kept)
    show(f"{before} results are kept of a run before this one")
    lessons = list(dict.fromkeys(name[:2] for name in exercises))
    sandboxes = dict(_sandboxes(show))
    everything = [trial for lesson in lessons for trial in trials(lesson, [1])]
    mistakes = [replace(trial, about=()) for trial in everything if trial.says]
    right = [_practised(lessons, kept, show)]
    for number, (kind, sandbox) in enumerate(sandboxes.items()):
        wanted = [trial for trial in everything if not (number and trial.says)]
        tried = resumed(wanted, kind, partial(run_trials, sandbox=sandbox, jobs=jobs), kept)
        right.append(kill_table(list(told_now_and_then(tried, len(wanted), f"under {kind}", show)), show))
    kind, sandbox = next(iter(sandboxes.items()))
    tried = resumed(mistakes, kind, partial(run_trials, sandbox=sandbox, jobs=jobs), kept)
    earned = list(told_now_and_then(tried, len(mistakes), "wrong answers on all cases", show))
    for line in told(earned):
        show(line)
    passed = run_all(exercises, jobs, show) and all(right)
    if passed:
        write_whole(FILE, _written(list(sandboxes), earned, (time.monotonic() - begin) / 60, before))
        kept.clear()
    return passed


def resumed(
    wanted: Sequence[Trial], kind: str, run: Callable[[list[Trial]], Iterator[Row]], kept: Kept
) -> Iterator[Row]:
    """What came of each trial: of those that were as they must be before, as long as nothing that decides
    them has changed, and then of those that `run` tries now. kind: of the sandbox.
    """
    left = []
    for trial in wanted:
        report = kept.get(_key(kind, trial), Report)
        if report is None:
            left.append(trial)
        else:
            yield Row(trial, Graded(report))
    for row in run(left):
        if row.ok:
            kept.add(_key(kind, row.trial), row.graded.report)
        yield row


def _key(kind: str, trial: Trial) -> str:
    cells = [(cell.source, cell.exercise) for cell in trial.cells]
    asked = (trial.exercise.id, trial.name, trial.seed, trial.must_fail, trial.verdict, trial.about)
    return key_of(kind, checks_digest(trial.exercise.lesson), *asked, *cells)


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


def _practised(lessons: Sequence[str], kept: Kept, show: Show) -> bool:
    """Whether every alternative of the lessons earns all points as a student runs it."""
    found = [each for lesson in lessons for each in alternatives(lesson)]
    done = [
        _earns_all(each, kept, show) for each in told_now_and_then(found, len(found), "in practice", show)
    ]
    return all(done)


def _earns_all(alternative: Alternative, kept: Kept, show: Show) -> bool:
    lesson = alternative.exercise.lesson
    key = key_of("in practice", checks_digest(lesson), alternative.name, alternative.source)
    if kept.get(key, bool):
        return True
    lost = [report for report in alternative.practised() if not report.passed]
    for report in lost:
        show(f"alternative {alternative.name} in practice:\n{report!r}")
    if not lost:
        kept.add(key, True)
    return not lost


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


def _written(sandboxes: list[str], earned: Sequence[Row], minutes: float, before: int) -> bytes:
    high = {f"{r.trial.exercise.id} {r.trial.name}": r for r in earned if _share(r) > MOST}
    reports = {name: (row.graded.report, fair(row)) for name, row in sorted(high.items())}
    passed = Passed(
        datetime.now(UTC).isoformat(timespec="minutes"),
        platform.node(),
        round(minutes, 1),
        before,
        sandboxes,
        len(earned),
        sum(map(_by_error, earned)),
        {name: (r.points, r.max_points, keeps) for name, (r, keeps) in reports.items()},
    )
    return msgspec.json.format(msgspec.json.encode(passed), indent=1) + b"\n"
