"""Any bytes under submitted/ are read as data, and become a notebook nbgrader can hold."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import notebook
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.grade.deciding import checks_digest
from autograder.grade.grading import Conditions, digest_of, grade_notebook, read_submission
from autograder.grade.reading import MOST_CODE, read_within_limits
from autograder.grade.records import Record
from autograder.grade.reference import graded_submission
from autograder.grade.submitted import (
    MOST_NESTED,
    MOST_VALUES,
    collected_from,
    depth_of,
    parse_notebook,
    places_of,
    read_bytes,
    read_notebook,
)
from autograder.gradebook import rebuild
from autograder.gradebook.links import remove_links
from autograder.gradebook.problems import PROBLEMS, CourseError, student_id_problem
from autograder.gradebook.steps import as_graded
from autograder.sandbox.unconfined import Unconfined
from labkit.checks import registry
from labkit.checks.source.notebook import MOST_CELLS, BadNotebook, cells_of
from labkit.checks.source.submission import Cell

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


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b" \n", "the file is empty; copy it again, or save it again in JupyterLab, and submit again"),
        (b'{"cells": [{"source": "def f', "it is cut off; copy it again"),
        (b"PK\x03\x04" + b"[" * 200, "it is a zip; take the notebook out of it, and submit again"),
        ('{"cells": []}'.encode("utf-16"), r"its text is not UTF-8 \(.*; open it in JupyterLab, save it"),
        (b"import torch", r"its JSON cannot be read \(.*; open it in JupyterLab, save it"),
    ],
)
def test_what_happened_to_a_file_is_told(data: bytes, says: str) -> None:
    with pytest.raises(BadNotebook, match=f"^x.ipynb is not a notebook: {says}"):
        parse_notebook(data, "x.ipynb")


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


def test_another_file_that_is_too_long_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "regrade.txt").write_bytes(b"x" * 1001)
    with pytest.raises(BadNotebook, match="has more than 1000 bytes; make it shorter and submit again"):
        read_bytes(tmp_path / "regrade.txt", 1000)


def lists(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def deeper(frames: int, call: Callable[[], object]) -> object:
    """What `call` gives so many frames further down the stack."""
    return deeper(frames - 1, call) if frames else call()


@pytest.mark.parametrize("frames", [0, 700])
def test_how_deep_a_notebook_may_be_nested_is_the_same_wherever_it_is_read(frames: int) -> None:
    """Or one that is graded is not the one that is shown."""
    at_most, more = (b'{"cells": [], "metadata": {"x": %b}}' % lists(MOST_NESTED - n) for n in (2, 1))
    assert deeper(frames, lambda: parse_notebook(at_most).cells) == []
    with pytest.raises(BadNotebook, match=rf"lie {MOST_NESTED + 1} deep .* at most {MOST_NESTED} may"):
        deeper(frames, lambda: parse_notebook(more))


DEPTHS = {
    b"3": 0,
    b'"[[["': 0,
    rb'["[\"[[\\", [], "]]]", {"{": "\\\"{"}]': 2,
    b'[{"\xf0\x9f\x98\x80[": 1}, [[]]]': 3,
    lists(2**20 + 7): 2**20 + 7,
    b'["' + b"[" * 2**20 + b'"]' + lists(3): 3,
    b"": 0,
}


@pytest.mark.parametrize("data", DEPTHS, ids=range(len(DEPTHS)))
def test_depth_is_counted_outside_strings(data: bytes) -> None:
    assert depth_of(data) == DEPTHS[data]


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


@pytest.mark.days
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


@pytest.mark.days
def test_an_answer_is_shown_in_whichever_cell_it_was_found() -> None:
    """As many cells are shown as are read."""
    raw = notebook(*["# a note"] * (MOST_CELLS - 1), DEFINES_F)
    _, _, places = read_submission(json.dumps(raw).encode(), "06.ipynb", [F])
    made = rebuild.rebuilt(raw, places, [])
    assert [c.source for c in made.cells if "nbgrader" in c.metadata] == [DEFINES_F]


SCORE = 'labkit.score("06.copy-to-tensor-parallel", "forward-values")'
WORDS = [
    *(SCORE, "labkit.score(", "x = 1", DEFINES_F, "def g():", " return 2", "# labkit", "%time y = 3"),
    *("\n", "\r", "\r\n", "; ", "\f", "\x1c", "\u2028", " "),
]
SPLIT = st.lists(st.sampled_from(WORDS), max_size=6)
BEHIND_A_SCORE = st.tuples(
    st.just(SCORE), st.sampled_from(["\r", "\n", "; ", "\f"]), st.sampled_from(["x = 1", "f = lambda: 1"])
)
FILLING = st.sampled_from([("markdown", "x" * 200_000), ("code", "#" + "y" * 199_999), ("code", SCORE)])
ONE_CELL = FILLING | st.tuples(st.just("code"), SPLIT | SPLIT.map("".join) | BEHIND_A_SCORE.map("".join))


@pytest.mark.days
@settings(deadline=None, max_examples=60)
@given(st.lists(ONE_CELL, max_size=6), st.integers(0, 12))
def test_every_cell_with_a_definition_is_shown_whole(found: list[tuple[str, Any]], fillings: int) -> None:
    """Property: whatever is around it, and however it is written. Else it could have points nobody sees."""
    long = [("markdown", "x" * 200_000)] * fillings
    cells = [{"cell_type": kind, "source": source} for kind, source in [*long, *found]]
    there = parse_notebook(json.dumps({"cells": cells}).encode())
    places, collected = places_of(there.cells, registry.exercises("06")), collected_from(there.cells)
    made = nbformat.reads(
        nbformat.writes(rebuild.rebuilt(there.raw, places, [], collected)), nbformat.current_nbformat
    )
    expected = [cell.source for cell in there.cells if cell.read().statements]
    shown = iter([cell.source for cell in made.cells if cell.cell_type == "code"])
    assert all(source in shown for source in expected)  # in this order, each in one of its own
    assert sum(len(cell.source) for cell in made.cells) <= rebuild.MOST_TEXT + 1000


def test_what_only_looks_like_a_graded_cell_is_shown() -> None:
    """A graded cell is one call and nothing else; one is left out only where nothing is defined in it."""
    like = [
        f"{SCORE}\r{DEFINES_F}",
        f"{SCORE}; f = lambda: 1",
        f"{SCORE}\f{DEFINES_F}",
        "labkit.score(f := 1)",
        "labkit.score(input())",
    ]
    assert [rebuild.is_score(source) for source in like] == [False] * len(like)
    assert rebuild.is_score(f"\n{SCORE} \n")


def test_every_graded_cell_of_a_release_is_known(released: nbformat.NotebookNode) -> None:
    graded = [c.source for c in released.cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert len(graded) == sum(len(exercise.properties) for exercise in registry.exercises("06"))
    assert all(rebuild.is_score(source) for source in graded)


def test_no_more_code_is_collected_than_is_shown() -> None:
    assert MOST_CODE <= rebuild.MOST_TEXT
    cells = [Cell(f"cell {n}", f"K{n} = 1 #".ljust(199_999, "x"), place=n) for n in range(1, 8)]
    cells.insert(0, Cell("cell 0", "#" * 199_999))  # nothing is defined in it
    found = read_within_limits(cells)
    assert [cell.label for cell in found if cell.read().problem] == ["cell 6", "cell 7"]
    assert "have more than 1000000 characters" in found[-1].read().problem
    assert collected_from(found) == [0, 1, 2, 3, 4]


def test_what_is_not_what_was_graded_is_not_shown_as_that(tmp_path: Path) -> None:
    path = tmp_path / "06_x.ipynb"
    path.write_text(json.dumps(notebook(DEFINES_F)))
    made = Record("06_tensor_parallel_ffn", "ada", path.name, digest_of(path), 1, "none", "")
    assert [cell.source for cell in as_graded(path, made, []).cells] == [DEFINES_F]
    path.write_text(json.dumps(notebook("x = 1")))
    with pytest.raises(CourseError, match=r"06_x\.ipynb is not the file any more that was graded.* again"):
        as_graded(path, made, [])
    path.write_bytes(b"no notebook")
    made.sha256 = digest_of(path)
    with pytest.raises(CourseError, match=r"is not a notebook.* It could be read when it was graded"):
        as_graded(path, made, [])
    made.problem = "it is a zip"
    assert "it is a zip" in as_graded(path, made, []).cells[0].source
    path.unlink()
    path.symlink_to("/etc/passwd")
    made.sha256 = ""
    assert "it is a zip" in as_graded(path, made, []).cells[0].source


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
