"""What `labkit build` makes of a lesson's source."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import small_lesson

from labkit.build import build, compare, instructor_notebook, read_lesson, student_notebook
from labkit.build.course import notebook_text
from labkit.build.rules import stub


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_lesson.write(tmp_path_factory.mktemp("solutions"))


@pytest.fixture(scope="module")
def released(source: Path) -> Any:
    return student_notebook(read_lesson(source), small_lesson.EXERCISES)


def cell(notebook: Any, identity: str) -> Any:
    return next(c for c in notebook.cells if c.id == identity)


def test_solutions_become_stubs_at_their_indentation(released: Any) -> None:
    made = cell(released, "90_double-it").source
    assert "secret" not in notebook_text(released)
    assert "SOLUTION" not in notebook_text(released)
    body = ast.parse(made).body[0]
    assert isinstance(body, ast.ClassDef)
    methods = [node for node in body.body if isinstance(node, ast.FunctionDef)]
    assert [m.name for m in methods] == ["forward", "backward"]
    raised = 'raise NotImplementedError("90.double-it: not written yet")'
    assert [ast.unparse(m.body[-1]) for m in methods] == [ast.unparse(ast.parse(raised))] * 2


def test_the_checked_stub_is_the_released_one(released: Any) -> None:
    """The build checks its own idea of the stub before nbgrader makes the real one; they must agree."""
    written = re.search(r"class Doubler.*?(?=\n\n\n)", small_lesson.SOURCE, re.DOTALL)
    assert written is not None
    assert stub(written[0], "90.double-it") == cell(released, "90_double-it").source


def test_blanks_behind_a_mark_leave_no_solution_in_the_checked_stub(tmp_path: Path) -> None:
    """What looks for solutions in what is handed out takes what is in the stub for no secret."""
    blanks = small_lesson.SOURCE.replace("SOLUTION\n", "SOLUTION \t\n")
    lesson = read_lesson(small_lesson.write(tmp_path, blanks))
    assert "### END SOLUTION \t" in blanks
    exercise = next(c for c in lesson.cells if "exercise" in c.options)
    made = student_notebook(lesson, small_lesson.EXERCISES)
    assert stub(exercise.source, "90.double-it") == cell(made, "90_double-it").source


def test_the_instructors_notebook_keeps_the_solution(source: Path) -> None:
    notebook = instructor_notebook(read_lesson(source), small_lesson.EXERCISES)
    assert "### BEGIN SOLUTION" in cell(notebook, "90_double-it").source


def test_each_property_has_its_graded_cell_with_its_points(released: Any) -> None:
    graded = [c for c in released.cells if c.metadata.get("nbgrader", {}).get("grade")]
    told = [(c.metadata.nbgrader.grade_id, c.metadata.nbgrader.points, c.source) for c in graded]
    assert told == [
        ("90_double-it__forward-values", 3, 'labkit.score("90.double-it", "forward-values")'),
        ("90_double-it__one_all-reduce", 2, 'labkit.score("90.double-it", "one all-reduce")'),
    ]
    assert all(c.metadata.jupyter.source_hidden for c in graded)
    assert [c.id for c in released.cells[-4:-2]] == ["labkit-scoreboard", "points"]
    assert released.cells[-3].metadata["jp-MarkdownHeadingCollapsed"] is True


def test_what_a_lesson_imports_is_folded(released: Any) -> None:
    """The question comes first."""
    (imports,) = (c for c in released.cells if "setup" in c.metadata.get("tags", ()))
    assert imports.metadata.jupyter.source_hidden


def test_the_answer_to_a_guess_is_folded(released: Any) -> None:
    """What JupyterLab shows of the code is its first line, and of the text nothing."""
    (code,) = (c for c in released.cells if c.source.endswith("print(2, your_guess)"))
    assert code.metadata.jupyter.source_hidden
    assert code.source.splitlines()[0].startswith("# The answer to your guess")
    (text,) = (c for c in released.cells if "Two, of course." in c.source)
    assert text.source.startswith("<details><summary>")
    assert text.source.endswith("</details>")


def test_checks_and_graded_cells_are_locked_and_exercises_are_not(released: Any) -> None:
    locked = {c.id for c in released.cells if c.metadata.get("editable") is False}
    assert locked == {"check_90_double-it", "90_double-it__forward-values", "90_double-it__one_all-reduce"}
    assert cell(released, "90_double-it").metadata.deletable is False


def test_the_exercise_is_announced_with_its_facts(released: Any) -> None:
    announced = cell(released, "exercise-double-it").source.splitlines()
    assert announced[1] == "*`90.double-it` · difficulty ●●○○○ · about 15 minutes · 5 points*"
    assert announced[-1] == "Twice, on every rank."


def test_the_authors_note_and_jupytext_leave_no_trace(released: Any) -> None:
    text = notebook_text(released)
    assert "whoever edits" not in text
    assert "jupytext" not in text
    assert released.metadata.kernelspec.name == "python3"


def test_building_twice_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    first = build(source, tmp_path / "one", small_lesson.EXERCISES)
    again = build(source, tmp_path / "two", small_lesson.EXERCISES)
    assert first.read_bytes() == again.read_bytes()
    assert first == tmp_path / "one" / "90_doubling" / "90_doubling.ipynb"
    nbformat.validate(nbformat.read(first, as_version=4))
    assert compare(source, tmp_path / "one", small_lesson.EXERCISES) is None


def test_who_reads_a_notebook_while_it_is_built_has_it_whole(tmp_path: Path) -> None:
    """A notebook that is open, here since its first byte, stays as it was to its end."""
    path = build(small_lesson.write(tmp_path), tmp_path / "out", small_lesson.EXERCISES)
    before = path.read_bytes()
    with path.open("rb", buffering=0) as reader:
        first = reader.read(1)
        other = small_lesson.SOURCE.replace("# # Doubling", "# # Twice as much")
        build(small_lesson.write(tmp_path, other), tmp_path / "out", small_lesson.EXERCISES)
        assert first + reader.read() == before
    assert path.read_bytes() != before
    assert list(path.parent.iterdir()) == [path]


def test_a_cells_id_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    more = small_lesson.SOURCE.replace(
        "# %% [markdown]\n# ## Where", "# %%\n1 + 1\n\n# %% [markdown]\n# ## Where"
    )
    before = instructor_notebook(read_lesson(small_lesson.write(tmp_path)), small_lesson.EXERCISES)
    after = instructor_notebook(read_lesson(small_lesson.write(tmp_path, more)), small_lesson.EXERCISES)
    assert [c.id for c in after.cells if c.id != "1-1"] == [c.id for c in before.cells]


def test_equal_cells_get_different_ids(tmp_path: Path) -> None:
    twice = small_lesson.SOURCE.replace(
        "# %% [markdown]\n# ## Where", "# %%\n1 + 1\n\n# %%\n1 + 1\n\n# %% [markdown]\n# ## Where"
    )
    notebook = instructor_notebook(read_lesson(small_lesson.write(tmp_path, twice)), small_lesson.EXERCISES)
    assert [c.id for c in notebook.cells if c.id.startswith("1-1")] == ["1-1", "1-1-2"]


def test_a_difference_names_the_cell_and_the_line(source: Path, tmp_path: Path) -> None:
    path = build(source, tmp_path, small_lesson.EXERCISES)
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = ["# Tripling\n", "What is twice $x$?"]
    del notebook["cells"][2]
    path.write_text(json.dumps(notebook))
    difference = compare(source, tmp_path, small_lesson.EXERCISES)
    assert difference is not None
    assert "cell doubling:" in difference.summary
    assert "-# Tripling" in difference.summary
    assert "+# Doubling" in difference.summary
    assert "cell your-guess: is in the source, not on disk" in difference.summary


@pytest.mark.parametrize(
    "content", [None, b"{", b"[]", b'{"cells": [{}]}', b'{"cells": ["a"]}', b"\xff\xfe{"]
)
def test_a_notebook_that_is_none_is_a_difference(source: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "90_doubling" / "90_doubling.ipynb"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    assert compare(source, tmp_path, small_lesson.EXERCISES) is not None
