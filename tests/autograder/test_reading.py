"""Cells that a parser takes long over, and the ones beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import notebook

from autograder.cli import main
from autograder.grade.grading import Conditions, grade_notebook
from autograder.grade.reading import MOST_FAILURES, MOST_STATEMENTS, read_within_limits
from autograder.grade.reference import REPOSITORY
from autograder.gradebook.problems import PROBLEMS
from autograder.sandbox.unconfined import Unconfined
from labkit.checks.source.submission import Cell, collect


def nested(depth: int) -> str:
    """A function whose byte code doubles with each level: what `finally` holds is compiled twice."""
    levels = [f"{' ' * n}try: a\n{' ' * n}finally:\n" for n in range(1, depth + 1)]
    return "def bomb():\n" + "".join(levels) + " " * (depth + 1) + "b\n"


MADE = Cell("cell 9", "def Made(): return 1")


@pytest.mark.days
def test_many_small_statements_are_read_within_the_limits() -> None:
    """There are ten seconds of the processor: each cell is read once, in a time that grows as it does."""
    cells = [Cell("cell 1", "a=1\n" * 20_000), Cell("cell 2", "from math import *\n" * 1200), MADE]
    found = [cell.read() for cell in read_within_limits(cells)]
    assert "more than 3000 definitions" in found[0].problem  # read it was: that is known from its statements
    assert [parsed.problem for parsed in found[1:]] == ["", ""]
    assert [len(parsed.statements) for parsed in found] == [0, 1200, 1]


@pytest.mark.days(6)
def test_a_cell_that_takes_too_long_is_its_own_problem_alone() -> None:
    """Until there are too many of them: the rest is then left unread, and said to be."""
    cells = [Cell("cell 2", nested(19)), MADE, Cell("cell 10", nested(19)), Cell("cell 11", "K = 1")]
    assert MOST_FAILURES == 2
    submission = collect(read_within_limits(cells), "06.made", ["Made", "K"])
    assert [statement.cell for statement in submission.statements] == ["cell 9"]
    assert list(submission.problems) == ["cell 2", "cell 10", "cell 11"]
    assert "cell 2: reading it took more than" in submission.problems["cell 2"]
    assert "was not read" in submission.problems["cell 11"]


def test_a_cell_with_more_definitions_than_anybody_writes_is_its_own_problem_alone() -> None:
    many = Cell("cell 2", "\n".join(f"K{n} = {n}" for n in range(MOST_STATEMENTS)))
    first, second, third = read_within_limits([Cell("cell 1", "K = 1"), many, Cell("cell 3", "L = 2")])
    assert "cell 2 was not read" in second.parsed.problem
    assert f"more than {MOST_STATEMENTS} definitions" in second.parsed.problem
    assert [len(cell.parsed.statements) for cell in (first, second, third)] == [1, 0, 1]


def test_a_fault_of_ours_with_a_cell_is_told_as_one_and_costs_no_other_cell() -> None:
    """What is looked up here is no text that can be written down. The cell is not graded without its flags
    either.
    """
    cells = [Cell(f"cell {n}", 'def f(): return getattr(torch, "\\ud800")') for n in range(MOST_FAILURES + 1)]
    *failed, made = (cell.read() for cell in read_within_limits([*cells, MADE]))
    for number, parsed in enumerate(failed):
        assert parsed.problem.startswith(
            f"cell {number} was not read: a fault of the grader, please report it: UnicodeEncodeError: "
        )
        assert not parsed.statements
    assert [each.defines for each in made.statements] == [("Made",)]


def test_a_cell_that_cannot_be_read_is_named_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "06_x.ipynb"
    path.write_text(json.dumps(notebook("def scratch(x, x): return x")))
    done = CliRunner().invoke(main, ["verify", str(path), "--unsafe-no-sandbox"])
    assert done.exit_code == 0
    assert "note: cell 1, line 1: SyntaxError: duplicate argument 'x'" in done.output


def test_a_host_that_does_not_run_what_reads_cells_costs_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's work is taken for cells that cannot be read: that would be a zero, and kept."""
    path = tmp_path / "06_x.ipynb"
    path.write_text(json.dumps(notebook(MADE.source)))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PROBLEMS, match="was ended with status 1 before it had read any"):
        grade_notebook(path, "ada", Conditions("06_tensor_parallel_ffn", 1, Unconfined()))


INTERRUPTED = """
import os, signal, threading
from autograder.grade.reading import read_within_limits
from labkit.checks.source.submission import Cell

signal.signal(signal.SIGINT, lambda number, frame: None)  # as grading, which finishes what it has begun
over = threading.Event()

def interrupt():
    while not over.wait(0.02):
        os.killpg(0, signal.SIGINT)  # as a terminal does

threading.Thread(target=interrupt).start()
try:
    found = read_within_limits([Cell(f"cell {n}", f"K{n} = {n}") for n in range(20)])
finally:
    over.set()
print([cell.parsed.problem for cell in found if cell.parsed.problem])
"""


def test_an_interrupt_at_the_terminal_costs_no_cell() -> None:
    """What was being read then would be a cell that took too long, in a record that is kept."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=100, start_new_session=True, check=True
    )
    assert done.stdout == "[]\n"
