"""Runs of lessons for the web site: what becomes of one that is too slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.site.runs import RunError, run_cells

pytestmark = pytest.mark.timeout(60)


def test_a_lesson_that_takes_too_long_is_named_with_its_cell(tmp_path: Path) -> None:
    """No cell is too slow for itself, all together are."""
    cells = [new_code_cell("import time; time.sleep(1.5)  # here") for _ in range(20)]
    done: list[int] = []
    with pytest.raises(RunError, match=r"(?s)05_made, solved, takes more than the 4 s that all .*# here"):
        run_cells("05_made", new_notebook(cells=cells), tmp_path, 4, lambda number, _: done.append(number))
    assert done[:1] == [1]
    assert len(done) < 5
