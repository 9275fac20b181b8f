"""References earn everything, stubs and empty notebooks nothing, and every mutant loses what it breaks."""

from __future__ import annotations

import dataclasses

import pytest

from autograder.grade import selftest
from autograder.grade.reference import graded_lessons, reference_cells
from autograder.grade.selftest import NoMutants, Row, kill_table, run_trials, trials
from autograder.mutants import Mutant, MutantError, mutants
from autograder.sandbox.choice import find_sandbox
from labkit.checks import registry

LESSON = "06"


@pytest.mark.sandbox
@pytest.mark.timeout(300)
def test_one_exercise_in_the_sandbox() -> None:
    """All trials of the first exercise; tests/lessons tries every mutant of every lesson, without a
    sandbox.
    """
    first = registry.exercises(LESSON)[0]
    wanted = [trial for trial in trials(LESSON, [1]) if trial.exercise == first]
    assert len([t for t in wanted if t.says]) >= 5
    honest, wrong = [t for t in wanted if not t.says], [t for t in wanted if t.says]
    rows = list(run_trials([*honest, *wrong[:6]], find_sandbox(), 2))
    shown: list[str] = []
    assert kill_table(rows, shown.append), "\n".join(shown)
    _a_survivor_is_seen(rows)


def _a_survivor_is_seen(rows: list[Row]) -> None:
    """The table fails when a mutant keeps its points: try it with one that a reference's grade stands in
    for.
    """
    mutant = next(row for row in rows if row.trial.says)
    passed = next(r for r in rows if r.trial.must_fail is None and r.trial.exercise == mutant.trial.exercise)
    survivor = dataclasses.replace(mutant, graded=passed.graded)
    shown: list[str] = []
    assert not kill_table([survivor], shown.append)
    assert shown[0].startswith("FAIL")


@pytest.mark.sandbox
def test_lessons_do_not_hide_from_each_other() -> None:
    """Lesson 01 is graded without labkit's own calculator, which lesson 04's checks need."""
    first = [next(t for t in trials(lesson, [1]) if t.must_fail is None) for lesson in ("01", "04")]
    assert [row.told for row in run_trials(first, find_sandbox(), 1)] == ["lost nothing"] * 2


@pytest.mark.parametrize("lesson", graded_lessons())
def test_every_mutant_fits_its_reference(lesson: str) -> None:
    """Each replaces a text that is there once, makes Python, and breaks properties that exist."""
    cells = {cell.exercise: cell.source for cell in reference_cells(lesson)}
    found = mutants(lesson)
    assert len({m.id for m in found}) == len(found)
    for mutant in found:
        compile(mutant.apply(cells[mutant.exercise]), mutant.id, "exec")
        for name in mutant.breaks:
            registry.exercise(mutant.exercise).property(name)


def test_an_exercise_without_mutants_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spared = registry.exercises(LESSON)[0].id
    monkeypatch.setattr(
        selftest, "mutants", lambda lesson: [m for m in mutants(lesson) if m.exercise != spared]
    )
    with pytest.raises(NoMutants, match=spared):
        trials(LESSON, [1])


def test_a_mutant_that_does_not_fit_is_named() -> None:
    for old in ("y", "x"):
        with pytest.raises(MutantError, match="m-1"):
            Mutant("m-1", "06.x", ("p",), old, "z", "says").apply("x = x")
