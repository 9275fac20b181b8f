"""Every lesson is graded as it should be: references earn all, stubs nothing, each mistake its own loss.

Most tests start ranks, on what the grader would run. Lesson 01 does not communicate and has its own, faster
tests. Of the wrong answers one in 512 is tried, others each day. A reference or stub that is on record
as it and its checks are now is tried every four weeks by `make test`, any other at once; `make thorough`
tries all on all cases.
"""

from __future__ import annotations

import os
from itertools import groupby

import pytest
from lesson_grading import ON_RECORD, graded, is_on_record, solved_but
from turn import EVERYTHING, SAMPLE, part_of, today

from autograder.grade.reference import all_cases, graded_lessons, solved_cells, stub_cells
from autograder.selftest.trials import trials
from autograder.selftest.wrong_answers import WrongAnswer, wrong_answers
from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.judge import NOT_REACHED
from labkit.checks.practice import VISIBLE_SEED

PARTS, DAYS = 512, 28
LESSONS = [name[:2] for name in graded_lessons() if name[:2] != "01"]
EXERCISES = [exercise for lesson in LESSONS for exercise in registry.exercises(lesson)]
EVERY_WRONG_ANSWER = [answer for lesson in LESSONS for answer in wrong_answers(lesson)]
WRONG_ANSWERS = part_of(EVERY_WRONG_ANSWER, PARTS, today())
# No wrong answer is written for these alone; those that are on record lose them beside other properties.
LOST_BESIDE_OTHERS = {
    ("05.checkpoint-sequential", "input-gradients"),
    ("09.choose-plan", "slow-links"),
    ("12.balance", "subgroup"),
}
exercises = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)


def leave_what_is_on_record(exercise: Exercise, trial_name: str) -> None:
    """Where a sample of all tests is run, skip what passed in a sandbox as it is now and has not its turn."""
    if SAMPLE in os.environ and exercise not in part_of(EXERCISES, DAYS, today()):
        trial = next(t for t in trials(exercise.lesson, [1], [exercise.id]) if t.name == trial_name)
        if is_on_record(trial):
            pytest.skip(f"{ON_RECORD}; tried every {DAYS} days")


@exercises
def test_the_reference_earns_every_point(exercise: Exercise) -> None:
    """`autograder selftest --seeds 50` tries more."""
    leave_what_is_on_record(exercise, "reference, seed 1")
    report = graded(exercise, list(solved_cells(exercise.lesson)), all_cases(exercise, 20261))
    assert report.passed, report
    assert report.points == exercise.max_points


@exercises
def test_the_stub_earns_nothing(exercise: Exercise) -> None:
    leave_what_is_on_record(exercise, "stub")
    report = graded(exercise, list(stub_cells(exercise.lesson)), exercise.cases(VISIBLE_SEED))
    assert (report.points, report.verdict) == (0, "not_attempted"), report


def test_every_property_explains_itself() -> None:
    """What a student reads who loses it: what must be true, and what most often breaks it."""
    everything = [exercise for lesson in registry.lessons() for exercise in registry.exercises(lesson)]
    assert [(e.id, p.name) for e in everything for p in e.properties if not p.says] == []
    assert [(e.id, p.name) for e in everything for p in e.properties if not p.usual_cause] == []


def test_every_property_is_broken_by_some_wrong_answer() -> None:
    """A property that no mistake loses would be points for nothing. `own-parts` has tests of its own."""
    lessons = registry.lessons()
    broken = {(m.exercise, name) for lesson in lessons for m in wrong_answers(lesson) for name in m.breaks}
    exercises = [exercise for lesson in lessons for exercise in registry.exercises(lesson)]
    owned = {(e.id, p.name) for e in exercises for p in e.properties if p.name != "own-parts"}
    assert owned - broken == LOST_BESIDE_OTHERS


def test_every_wrong_answer_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERYTHING, raising=False)
    parts = [part_of(EVERY_WRONG_ANSWER, PARTS, turn) for turn in range(PARTS)]
    assert sorted(a.id for part in parts for a in part) == sorted(a.id for a in EVERY_WRONG_ANSWER)
    monkeypatch.setenv(EVERYTHING, "1")
    assert part_of(EVERY_WRONG_ANSWER, PARTS, 0) == EVERY_WRONG_ANSWER


@pytest.mark.parametrize("answer", WRONG_ANSWERS, ids=lambda m: f"{m.exercise[:2]}-{m.id}")
def test_a_mistake_loses_what_it_breaks(answer: WrongAnswer) -> None:
    """On the visible cases, so that a student is told; on the unseen ones where only those can show it.

    The cases with the fewest ranks first: most mistakes show there, and the others need not run.
    """
    exercise = registry.exercise(answer.exercise)
    cells, alive = solved_but(exercise, answer.apply), set(answer.breaks)
    drawn = sorted(all_cases(exercise, VISIBLE_SEED), key=lambda case: (case.hidden, case.ranks))
    for _, together in groupby(drawn, key=lambda case: (case.hidden, case.ranks)):
        cases = [case for case in together if alive & set(exercise.looked_at_in(case))]
        if cases:
            report = graded(exercise, cells, cases)
            alive -= {row.name for row in report.rows if not row.passed and NOT_REACHED not in row.seen}
        if not alive:
            return
    raise AssertionError(f"{answer.id} ({answer.says}) still earns {sorted(alive)}\n{report}")
