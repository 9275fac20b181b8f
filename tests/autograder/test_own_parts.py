"""A later exercise that needs what only the student's own version of an earlier one has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import SEED

from autograder.grade.harness import Graded, Harness
from autograder.grade.reference import all_cases, solved_cells
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(200)]

MLP = registry.exercise("06.tensor-parallel-mlp")
COLUMN = "06.column-parallel-linear"
SETS = "self.gather_output = gather_output"
USES = "return self.down(F.gelu(self.up(x)))"

# What is added to the column layer, and how the MLP uses it.
EXTRAS = {
    "an attribute that __init__ sets": (f"{SETS}\n        self.own_width = weight.shape[0]", "own_width"),
    "a property of such an attribute": (
        f"{SETS}\n        self._own = weight.shape[0]\n\n    @property\n    def own_width(self):\n"
        "        return self._own",
        "own_width",
    ),
    "a method": (f"{SETS}\n\n    def own_width(self):\n        return self.weight.shape[0]", "own_width()"),
    "a constant of the class": (f"{SETS}\n\n    own_width = 1", "own_width"),
}


def few_cases() -> list[Case]:
    """One of the student's own parts, one of values: both on as few ranks as there are."""
    drawn = sorted(all_cases(MLP, SEED), key=lambda case: case.ranks)
    kinds: tuple[Callable[[Case], bool], ...] = (lambda c: c.own_parts, lambda c: c.kind == "values")
    return [replace(next(c for c in drawn if wanted(c) and not c.hidden), timeout=20.0) for wanted in kinds]


def graded_with(harness: Harness, sets: str, uses: str, broken: bool = False) -> Graded:
    def edited(cell: Cell) -> Cell:
        if cell.exercise == COLUMN:
            source = cell.source.replace(SETS, sets)
            cell = replace(
                cell, source=source.replace("chunk(size, dim=0)", "chunk(size)") if broken else source
            )
            if broken:
                cell = replace(cell, source=cell.source.replace("F.linear(x, self.weight, self.bias)", "x"))
        if cell.exercise == MLP.id:
            cell = replace(cell, source=cell.source.replace(USES, f"assert self.up.{uses}\n        {USES}"))
        return cell

    return harness.grade(MLP, [edited(cell) for cell in solved_cells("06")], SEED, few_cases())


@pytest.mark.days
@pytest.mark.parametrize("extra", EXTRAS)
def test_it_keeps_its_points(harness: Harness, extra: str) -> None:
    """`labkit validate` passes it, as there the student's own versions are all there is."""
    graded = graded_with(harness, *EXTRAS[extra])
    for name in ("forward-values", "communication", "own-parts"):
        assert graded.report.row(name).passed, graded.report
    assert graded.flags == []


@pytest.mark.days
def test_the_report_says_whose_version_it_was_graded_with(harness: Harness) -> None:
    sets, uses = EXTRAS["an attribute that __init__ sets"]
    (note,) = graded_with(harness, sets, uses).report.notes
    assert "ColumnParallelLinear" in note
    assert "in place of the course's" in note


@pytest.mark.days
def test_own_parts_that_do_not_work_are_not_put_in(harness: Harness) -> None:
    """A mistake in them costs what it costs: the exercise is told that with the course's it fails."""
    graded = graded_with(harness, *EXTRAS["an attribute that __init__ sets"], broken=True)
    assert not graded.report.row("forward-values").passed
    assert not graded.report.row("own-parts").passed
    assert graded.report.notes == []
    assert any("own_width" in stop.text for stop in graded.report.stops)
