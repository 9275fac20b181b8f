"""Which lessons a changed file grades again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.grade.deciding import deciding_files, digest_of_files
from autograder.grade.reference import graded_lessons

pytestmark = pytest.mark.days()

Edited = Callable[[str], set[str]]


@pytest.fixture(scope="module")
def edited(copied: Path) -> Edited:
    """Adds a line to a file, says which lessons' digests move, and takes it back."""
    before = {lesson[:2]: digest_of_files(lesson, copied) for lesson in graded_lessons()}

    def edit(name: str) -> set[str]:
        path = copied / name
        was = path.read_bytes() if path.exists() else None
        path.write_bytes((was or b"") + b"\n")
        try:
            return {number for number, digest in before.items() if digest_of_files(number, copied) != digest}
        finally:
            path.write_bytes(was) if was is not None else path.unlink()

    return edit


@pytest.mark.parametrize(
    ("name", "lessons"),
    [
        ("labkit/checks/lesson_05/recomputing.py", {"05"}),
        ("labkit/checks/lesson_01/visible.json", {"01"}),
        ("autograder/lessons/lesson_03/unseen.py", {"03"}),
        ("autograder/lessons/lesson_01/memory_values.py", {"01"}),
        ("solutions/04_pipeline.py", {"04"}),
        ("autograder/lessons/lesson_03/survivors.toml", set()),
        ("labkit/show/table.py", set()),
        ("labkit/launch/job.py", set()),
    ],
)
def test_a_file_of_one_lesson(edited: Edited, name: str, lessons: set[str]) -> None:
    assert edited(name) == lessons


def test_shared_code_moves_who_imports_it(edited: Edited) -> None:
    """`layer_activation_bytes` is imported through the lazy names of labkit.theory, and gives expected values
    of 07.activation-bytes.
    """
    moved = edited("labkit/theory/activations.py")
    assert {"01", "07"} <= moved
    assert "03" not in moved
    everybody = {lesson[:2] for lesson in graded_lessons()}
    assert edited("labkit/checks/judge.py") == everybody
    assert edited("labkit/checks/source/statements.py") == everybody


def test_what_only_a_type_checker_imports_does_not_count(copied: Path) -> None:
    """`labkit.theory` names all its parts for type checkers; lesson 03 uses one."""
    files = {path.relative_to(copied).as_posix() for path in deciding_files("03", copied)}
    assert "labkit/theory/units.py" in files
    assert "labkit/theory/inference.py" not in files
