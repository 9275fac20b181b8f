"""Builds lessons into notebooks on disk, and compares what is on disk with what would be built."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.build.markup import Lesson, LessonError, read_lesson
from labkit.build.notebook import source_notebook
from labkit.build.rules import check_lesson
from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.whole_file import write_whole


@dataclass(frozen=True)
class Difference:
    """One notebook that is not what its lesson's source makes, and a readable summary of how."""

    path: Path
    summary: str


def find_lessons(wanted: Iterable[str], solutions: Path) -> list[Path]:
    """Sources of the lessons asked for (`06`, `06_tensor_parallel_ffn` or a path), or of all lessons.

    Raises LookupError, with what there is, for one that is not there.
    """
    there = sorted(solutions.glob("[0-9][0-9]_*.py"))
    if not there:
        raise LookupError(f"no lessons in {solutions}: expected files like 06_tensor_parallel_ffn.py")
    found = [_find_lesson(word, there) for word in wanted]
    return found or there


def _find_lesson(word: str, there: Sequence[Path]) -> Path:
    given = Path(word)
    if given.suffix == ".py" and given.is_file():
        return given
    for path in there:
        if word in (path.stem, path.stem[:2], path.name):
            return path
    raise LookupError(f"no lesson {word!r}; the lessons are {', '.join(path.stem for path in there)}")


def lesson_exercises(lesson: Lesson) -> tuple[Exercise, ...]:
    """What the checks define for this lesson; none when it has no checks."""
    if lesson.number not in registry.lessons():
        return ()
    return registry.exercises(lesson.number)


def instructor_notebook(lesson: Lesson, exercises: Sequence[Exercise] | None = None) -> NotebookNode:
    """The lesson with its solutions and nbgrader's marks: what a course's `source/` holds.

    exercises: what the lesson's checks define; looked up when not given.
    Raises LessonError, with file and line, when the lesson is not built right.
    """
    if exercises is None:
        exercises = lesson_exercises(lesson)
    if not lesson.name.startswith(f"{lesson.number}_"):
        raise LessonError(
            lesson.path, 1, f"the header says lesson {lesson.number!r}, the file's name does not"
        )
    check_lesson(lesson, exercises)
    return source_notebook(lesson, exercises)


def student_notebook(lesson: Lesson, exercises: Sequence[Exercise] | None = None) -> NotebookNode:
    """The lesson as released: solutions and hidden parts gone, cells locked, no outputs."""
    from labkit.build.release import release

    return release(lesson.name, instructor_notebook(lesson, exercises))


def build(source: Path, notebooks: Path, exercises: Sequence[Exercise] | None = None) -> Path:
    """Write the students' notebook of one lesson's source under `notebooks`. Returns its path."""
    lesson = read_lesson(source)
    text = notebook_text(student_notebook(lesson, exercises))
    path = notebook_path(lesson, notebooks)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())  # others read it, and build it, at the same time
    return path


def compare(source: Path, notebooks: Path, exercises: Sequence[Exercise] | None = None) -> Difference | None:
    """How the notebook under `notebooks` differs from what its source makes, or None. Writes nothing."""
    lesson = read_lesson(source)
    expected = notebook_text(student_notebook(lesson, exercises))
    path = notebook_path(lesson, notebooks)
    if not path.is_file():
        return Difference(path, "does not exist")
    try:
        found = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return Difference(path, f"is not a notebook: {error}")
    return None if found == expected else Difference(path, _summary(found, expected))


def notebook_path(lesson: Lesson, notebooks: Path) -> Path:
    """Where a lesson's notebook stands among the notebooks."""
    return notebooks / lesson.name / f"{lesson.name}.ipynb"


def notebook_text(notebook: NotebookNode) -> str:
    """The bytes a notebook is stored as: sorted keys, one space of indent, a final newline."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def _summary(found: str, expected: str) -> str:
    """Which cells differ, and the first lines of how."""
    try:
        ours, theirs = _cells(found), _cells(expected)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"is not a notebook: {error}"
    gone = [f"cell {name}: is on disk, the source has none" for name in ours if name not in theirs]
    new = [f"cell {name}: is in the source, not on disk" for name in theirs if name not in ours]
    changed = [
        f"cell {name}:\n" + _diff(ours[name], theirs[name])
        for name in theirs
        if name in ours and ours[name] != theirs[name]
    ]
    return (
        "\n".join(gone + new + changed) or "has the same cells in another order, or other metadata or format"
    )


def _cells(text: str) -> dict[str, str]:
    """Each cell by its id, as text: its source, then everything else it has."""
    cells = json.loads(text)["cells"]
    rest = [{key: value for key, value in cell.items() if key not in ("id", "source")} for cell in cells]
    return {
        cell["id"]: "".join(cell["source"]) + "\n" + json.dumps(other, indent=1, sort_keys=True)
        for cell, other in zip(cells, rest, strict=True)
    }


def _diff(found: str, expected: str, most: int = 12) -> str:
    lines = list(
        difflib.unified_diff(found.splitlines(), expected.splitlines(), "on disk", "built", n=0, lineterm="")
    )
    shown = [f"    {line}" for line in lines[2 : 2 + most]]
    return "\n".join(shown + (["    ..."] if len(lines) > 2 + most else []))
