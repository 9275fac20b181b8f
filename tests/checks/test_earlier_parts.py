"""A report says where an earlier answer may be to blame; cells are named as JupyterLab shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.checks import registry
from labkit.checks.judge import not_attempted
from labkit.checks.practice import about_earlier
from labkit.checks.report import Report
from labkit.checks.source.notebook import cells_of
from labkit.checks.source.submission import Submission

MFU = registry.exercise("01.model-flops-utilization")
(EARLIER,) = MFU.builds_on


def report(exercise_id: str, passed: bool) -> Report:
    found = not_attempted(registry.exercise(exercise_id), Submission([]))
    rows = [replace(row, passed=passed) for row in found.rows]
    return replace(found, rows=rows, verdict="passed" if passed else "failed")


def test_rows_that_an_earlier_answer_may_have_cost_are_named() -> None:
    (told,) = about_earlier(MFU, report(MFU.id, False), {EARLIER: report(EARLIER, False)})
    assert EARLIER in told
    assert told.endswith("for published and all-gpus.")  # own-parts is graded with the student's own


@pytest.mark.parametrize(("this", "earlier"), [(True, False), (False, True)])
def test_nothing_is_said_where_nothing_is_lost_or_the_earlier_one_holds(this: bool, earlier: bool) -> None:
    assert about_earlier(MFU, report(MFU.id, this), {EARLIER: report(EARLIER, earlier)}) == []


def test_cells_have_the_numbers_that_jupyterlab_shows() -> None:
    """A number that two cells have, or none, is no name: their place is."""
    counts = [3, 3, 7, None, True]
    cells = [{"cell_type": "code", "source": "x = 1", "execution_count": count} for count in counts]
    names = [cell.label for cell in cells_of({"cells": cells})]
    assert names == ["cell 1", "cell 2", "cell In [7]", "cell 4", "cell 5"]
