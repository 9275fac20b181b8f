"""Any bytes under submitted/ are read as data, and become a notebook nbgrader can hold."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import notebook
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.grade.deciding import checks_digest
from autograder.grade.grading import Conditions, digest_of, grade_notebook, read_submission
from autograder.grade.reference import graded_submission
from autograder.grade.submitted import MOST_VALUES, parse_notebook, places_of, read_notebook
from autograder.gradebook import rebuild
from autograder.gradebook.links import remove_links
from autograder.gradebook.problems import PROBLEMS, student_id_problem
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry
from labkit.checks.source.notebook import MOST_CELLS, BadNotebook, cells_of

F = registry.exercise("06.copy-to-tensor-parallel")
DEFINES_F = "class CopyToTensorParallel: pass"
NOT_NOTEBOOKS = [
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[]",
    b"{}",
    b'{"cells": 3}',
    b"null",
    b"[" * 200_000,
    b'{"cells": {}}',
]


@pytest.mark.parametrize("data", NOT_NOTEBOOKS, ids=range(len(NOT_NOTEBOOKS)))
def test_what_is_not_a_notebook(data: bytes) -> None:
    with pytest.raises(BadNotebook, match="is not a notebook"):
        parse_notebook(data)


def test_links_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "link.ipynb").symlink_to("/etc/passwd")
    (tmp_path / "folder.ipynb").mkdir()
    for name, why in (
        ("link", "symbolic link"),
        ("folder", "not a regular file"),
        ("absent", "No such file"),
    ):
        with pytest.raises(BadNotebook, match=why):
            read_notebook(tmp_path / f"{name}.ipynb")


@contextlib.contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """As on a machine where very many are open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_what_this_machine_cannot_read_now_has_no_grade(tmp_path: Path) -> None:
    """It may be all right, and a zero would be the machine's doing."""
    path = tmp_path / "06_x.ipynb"
    path.write_text(json.dumps(notebook(DEFINES_F)))
    conditions = Conditions("06_tensor_parallel_ffn", 1, Unconfined())
    checks_digest(conditions.lesson)  # is kept: nothing else is opened
    with no_file_can_be_opened(), pytest.raises(PROBLEMS, match="Too many open files"):
        grade_notebook(path, "ada", conditions)
    (tmp_path / "link.ipynb").symlink_to(path)
    of_no_file = grade_notebook(tmp_path / "link.ipynb", "ada", conditions).sha256
    assert digest_of(tmp_path / "link.ipynb") == of_no_file
    with no_file_can_be_opened():
        assert digest_of(path) != of_no_file  # or the zero of a link would pass for this one's grade


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.ipynb").open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(BadNotebook, match=r"more than \d+ MiB"):
        read_notebook(tmp_path / "huge.ipynb")


def test_a_file_of_too_many_values_is_not_read() -> None:
    """Read, this would take 400 MiB for its 17."""
    with pytest.raises(BadNotebook, match=f"at most {MOST_VALUES} are read"):
        parse_notebook(b'{"cells": [' + b"[]," * (MOST_VALUES // 2) + b"[]]}" + b" " * 2**20)


@pytest.mark.parametrize(
    "source",
    [
        "(" * 5000,
        "-" * 100_000 + "1",
        "x = " + "[" * 3000,
        "\x00",
        "\ud800",
        "def f(:",
        "x" * 300_000,
        "f'{" * 200,
        "0x" + "f" * 10_000,
    ],
    ids=range(9),
)
def test_hostile_cells_do_not_keep_others_from_being_read(source: str) -> None:
    cells = parse_notebook(json.dumps(notebook(source, DEFINES_F)).encode()).cells
    submission, _ = graded_submission(cells, F)
    assert [s.defines for s in submission.statements] == [("CopyToTensorParallel",)]


KEYS = ["cells", "cell_type", "source", "metadata", "nbgrader", "grade_id", "labkit", "x"]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["code", "markdown", "raw", 7])
SOURCES, COUNTS = st.just(DEFINES_F) | JSON, st.integers(0, 3) | JSON
PARTS = {"cell_type": KINDS, "source": SOURCES, "execution_count": COUNTS, "metadata": JSON, "id": JSON}
CELL = st.fixed_dictionaries({}, optional=PARTS)


@settings(deadline=None)
@given(st.lists(CELL | JSON, max_size=4))
def test_any_cells_become_a_valid_notebook(cells: list[Any]) -> None:
    """Property: whatever the cells hold, the rebuilt notebook is one nbgrader accepts, its marks all ours."""
    notebook = parse_notebook(json.dumps({"cells": cells}).encode())
    raw, places = notebook.raw, places_of(notebook.cells, registry.exercises("06"))
    graded = [rebuild.graded_cell("06_copy-to-tensor-parallel__forward-values", 1, 'labkit.score("a", "b")')]
    made = rebuild.rebuilt(raw, places, graded)
    nbformat.validate(made)
    marks = {c.metadata.nbgrader.grade_id: c.source for c in made.cells if "nbgrader" in c.metadata}
    answered = any(cell.source == DEFINES_F for cell in notebook.cells)
    answer = {"06_copy-to-tensor-parallel": DEFINES_F} if answered else {}
    assert marks == {"06_copy-to-tensor-parallel__forward-values": graded[0].source} | answer


def test_marks_are_put_back_whatever_was_done_to_them() -> None:
    raw = notebook(
        "x = 1", DEFINES_F, "y = 2", 'labkit.score("06.copy-to-tensor-parallel", "forward-values")'
    )
    lie = {
        "grade": True,
        "grade_id": "06_copy-to-tensor-parallel",
        "points": 1000,
        "locked": True,
        "schema_version": 1,
    }
    for cell in raw["cells"]:
        cell["metadata"] = {
            "nbgrader": lie,
            "labkit": {"exercise": "06.сopy-to-tensor-parallel"},
        }  # a Cyrillic c
    made = rebuild.rebuilt(raw, places_of(cells_of(raw), registry.exercises("06")), [])
    marked = [(c.source, c.metadata.nbgrader) for c in made.cells if "nbgrader" in c.metadata]
    assert [source for source, _ in marked] == [DEFINES_F]
    assert marked[0][1]["grade"] is False
    assert "points" not in marked[0][1]
    assert len(made.cells) == 3, "a copy of a graded cell is left out"


def test_cells_that_were_run_are_found_by_their_places_too() -> None:
    """A saved notebook has the numbers beside its cells: in any order, twice, or no numbers at all."""
    raw = notebook("x = 1", DEFINES_F, "y = 2", DEFINES_F, "z = 3")
    for cell, count in zip(raw["cells"], (7, 3, 3, 12, "12"), strict=True):
        cell["execution_count"] = count
    assert [cell.label for cell in cells_of(raw)] == [
        "cell In [7]",
        *("cell 2", "cell 3", "cell In [12]", "cell 5"),
    ]
    _, cells, places = read_submission(json.dumps(raw).encode(), "06.ipynb", [F])
    assert places == {F.id: 3}
    assert cells[places[F.id]].source == DEFINES_F


def test_an_answer_is_shown_in_whichever_cell_it_was_found() -> None:
    """As many cells are shown as are read."""
    raw = notebook(*["# a note"] * (MOST_CELLS - 1), DEFINES_F)
    _, _, places = read_submission(json.dumps(raw).encode(), "06.ipynb", [F])
    made = rebuild.rebuilt(raw, places, [])
    assert [c.source for c in made.cells if "nbgrader" in c.metadata] == [DEFINES_F]


def test_the_last_definition_is_the_exercise() -> None:
    raw = notebook(DEFINES_F, DEFINES_F + "\n# again")
    made = rebuild.rebuilt(raw, places_of(cells_of(raw), registry.exercises("06")), [])
    assert ["nbgrader" in c.metadata for c in made.cells] == [False, True]


@pytest.mark.parametrize("name", ["ada", "Müller, J.", "学生", "a.b-c_d", "o'brien", "x" * 128])
def test_names_that_can_be_students(name: str) -> None:
    assert student_id_problem(name) == ""


@pytest.mark.parametrize(
    "name", ["", " ada", ".hidden", "a*", "{student_id}", "[abc]", "a\nb", "a\u202eb", "x" * 129, "a\\b"]
)
def test_names_that_cannot(name: str) -> None:
    assert student_id_problem(name)


def test_links_are_taken_out_of_a_submission(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/")
    (tmp_path / "kept.txt").write_text("x")
    assert sorted(remove_links(tmp_path)) == ["data/passwd", "up"]
    assert (tmp_path / "kept.txt").exists()
