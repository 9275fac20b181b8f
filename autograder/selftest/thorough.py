"""Everything that tries the checks and takes long, in one run that is written down when it has passed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import msgspec

from autograder.grade.reference import REPOSITORY, graded_lessons
from autograder.sandbox.choice import FINDERS, find_sandbox
from autograder.sandbox.sandbox import NoSandbox, Sandbox
from autograder.selftest.kept import Kept
from autograder.selftest.outcomes import Outcome, Outcomes
from autograder.selftest.progress import told_now_and_then
from autograder.selftest.systematic import run_all
from autograder.selftest.trials import (
    Row,
    Trial,
    kill_table,
    of_alternatives,
    run_in_practice,
    run_trials,
    trials,
)
from labkit.checks import registry
from labkit.whole_file import write_whole

FILE = REPOSITORY / "benchmarks" / "results" / "thorough.json"
PRACTICE = "in practice"  # in no sandbox, on the visible cases alone
SEED = 1
MOST = 0.8  # of an exercise's points: a wrong answer that keeps more is listed
SPECIAL = "right but in special cases, which have points of their own"
Show = Callable[[str], None]
Run = Callable[[list[Trial]], Iterator[Row]]
Earned = tuple[Trial, Outcome]


class Passed(msgspec.Struct):
    """A run in which everything was as it must be. sandboxes: those under which right answers were graded.

    keep_most: wrong answers that keep most points of their exercise -> points kept, points there are, and why
    that is fair: empty where nobody has said.
    by_error_alone: how many wrong answers end in an error, which proves little about a check.
    minutes: of the last run; tried: how many trials it made itself, the others being on record.
    """

    date: str
    host: str
    minutes: float
    tried: int
    sandboxes: list[str]
    wrong_answers: int
    by_error_alone: int
    keep_most: dict[str, tuple[float, float, str]]


def run_everything(lessons: Sequence[str], jobs: int, show: Show) -> bool:
    """Right answers, wrong answers and variants of these lessons; writes `thorough.json` when all is well and
    no lesson was left out.

    What was as it must be is kept as it comes, and holds until something that decides it changes: a run that
    was interrupted, or in which something failed, is begun again and tries the rest.
    """
    begin, sandboxes = time.monotonic(), dict(_sandboxes(show))
    right, tried, earned = [True], 0, list[Earned]()
    for lesson in lessons:
        for kind, wanted, run in _rounds(lesson, sandboxes, jobs):
            outcomes = Outcomes(lesson, kind)
            rows = list(tried_anew(wanted, outcomes, run, f"{lesson}, {kind}", show))
            for line in kill_table(rows) if rows else ():
                show(line)
            right.append(all(row.ok for row in rows))
            tried += len(rows)
            earned += [(t, outcome) for t in wanted if t.says and (outcome := outcomes.of(t))]
    for line in told(earned):
        show(line)
    exercises = [exercise.id for lesson in lessons for exercise in registry.exercises(lesson)]
    passed = run_all(exercises, jobs, show) and all(right)
    if passed and list(lessons) == graded_lessons():
        write_whole(FILE, _written(list(sandboxes), earned, (time.monotonic() - begin) / 60, tried))
        Kept().clear()
    return passed


def tried_anew(
    wanted: Sequence[Trial], outcomes: Outcomes, run: Run, doing: str, show: Show
) -> Iterator[Row]:
    """What comes of each trial that is not on record, as `run` tries it; what is as it must be is written
    down. doing: what this is, for who waits.
    """
    outcomes.forget_all_but(wanted)
    left = [trial for trial in wanted if outcomes.of(trial) is None]
    show(f"{doing}: {len(wanted) - len(left)} of {len(wanted)} trials are on record")
    for row in told_now_and_then(run(left) if left else (), len(left), doing, show):
        if row.ok:
            outcomes.keep(row)
        yield row


def told(earned: Sequence[Earned]) -> Iterator[str]:
    """What wrong answers earn on all cases, those that keep most last."""
    for trial, outcome in sorted(earned, key=lambda each: each[1].share):
        points = f"{outcome.points:>4g}/{outcome.max_points:<4g}"
        why = fair(trial, outcome)
        keeps = f" ({why})" if outcome.share > MOST and why else ""
        lost = f"lost {', '.join(outcome.lost)}" if outcome.lost else "lost nothing"
        yield f"{points} {outcome.exercise:<32} {outcome.trial}: {lost}{keeps}"
    high = [each for each in earned if each[1].share > MOST]
    silent = sum(not fair(*each) for each in high)
    yield (
        f"{len(high)} of {len(earned)} wrong answers keep more than {MOST:.0%}, {silent} of them without a "
        f"word why that is fair; {_by_error(earned)} end in an error"
    )


def _sandboxes(show: Show) -> Iterator[tuple[str, Sandbox]]:
    """Every kind that works here. NoSandbox where none does."""
    find_sandbox()
    for kind in FINDERS:
        try:
            yield kind, find_sandbox(kind=kind)
        except NoSandbox as problem:
            show(f"not under {kind}: {problem}")


def _rounds(
    lesson: str, sandboxes: Mapping[str, Sandbox], jobs: int
) -> Iterator[tuple[str, list[Trial], Run]]:
    """A lesson's alternatives as a student runs them, its right answers in every sandbox, and its wrong ones
    in the first: where, what, and what runs them.
    """
    yield PRACTICE, list(of_alternatives(lesson, SEED)), partial(run_in_practice, jobs=jobs)
    everything = [replace(trial, about=()) for trial in trials(lesson, [SEED])]
    for kind, sandbox in sandboxes.items():
        first = kind == next(iter(sandboxes))
        wanted = [trial for trial in everything if first or not trial.says]
        yield kind, wanted, partial(run_trials, sandbox=sandbox, jobs=jobs)


def fair(trial: Trial, outcome: Outcome) -> str:
    """Why a wrong answer may keep most points: what its file says, or that it is wrong in special cases
    alone, which have points of their own. Empty where neither is so.
    """
    kinds = {trial.exercise.property(name).kind for name in outcome.lost}
    return trial.keeps or (SPECIAL if kinds == {"robustness"} else "")


def _by_error(earned: Sequence[Earned]) -> int:
    return sum(outcome.verdict == "error" for _, outcome in earned)


def _written(sandboxes: list[str], earned: Sequence[Earned], minutes: float, tried: int) -> bytes:
    high = {
        f"{o.exercise} {o.trial}": (o.points, o.max_points, fair(t, o)) for t, o in earned if o.share > MOST
    }
    passed = Passed(
        datetime.now(UTC).isoformat(timespec="minutes"),
        platform.node(),
        round(minutes, 1),
        tried,
        sandboxes,
        len(earned),
        _by_error(earned),
        dict(sorted(high.items())),
    )
    return msgspec.json.format(msgspec.json.encode(passed), indent=1) + b"\n"
