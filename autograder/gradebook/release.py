"""The students' bundle: the released notebooks and labkit, and nothing that gives an answer away."""

from __future__ import annotations

import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autograder.grade.reference import REPOSITORY, solutions_folder
from autograder.gradebook.problems import CourseError
from labkit.build.course import build, find_lessons
from labkit.build.markup import Cell, read_lesson
from labkit.build.rules import stub

# What a student needs besides notebooks/, as it stands in the repository.
PARTS = (
    *("labkit", "cluster/slurm", "cluster/sites"),
    *("constraints.txt", "LICENSE"),
)
OWN = (
    Path(__file__).parent / "bundle"
)  # what is written for students: a README, and how labkit alone is installed
EXTRAS = ("lab", "tensorboard")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".ipynb_checkpoints")
DISTINCTIVE = 25  # characters a line needs to say whose it is


class Leak(CourseError):
    """The bundle would hold a line of a solution; the message says which, and where."""


def write_bundle(folder: Path) -> list[Path]:
    """Write the bundle into `folder`, which must be new or empty, and stays so where it cannot be written
    whole. Leak when a solution's line is in it.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CourseError(f"{folder} is not empty: a bundle goes into a folder of its own")
    beside = folder.resolve().parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=beside) as unfinished:
        _write_parts(Path(unfinished))
        if leaks := list(leaked_lines(Path(unfinished))):
            raise Leak("\n".join(leaks))
        folder.mkdir(exist_ok=True)  # filled, not replaced: it may be where somebody's shell is, or a mount
        for path in Path(unfinished).iterdir():
            shutil.move(path, folder / path.name)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_parts(folder: Path) -> None:
    for name in PARTS:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=LEFT_OUT)
        elif source.is_file():
            shutil.copy2(source, folder / name)
        else:
            raise CourseError(f"{source} goes into the bundle, and is not there: it takes a whole checkout")
    _write_own_files(folder)
    for lesson in find_lessons([], solutions_folder()):
        build(lesson, folder / "notebooks")


def _write_own_files(folder: Path) -> None:
    """The README, a Makefile that opens the lessons, and a pyproject without the grader."""
    from jinja2 import StrictUndefined, Template

    shutil.copy2(OWN / "README.md", folder)
    shutil.copy2(REPOSITORY / "lab.mk", folder / "Makefile")
    (folder / "notebooks").mkdir()
    shutil.copy2(REPOSITORY / "notebooks" / "README.md", folder / "notebooks")
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    template = Template((OWN / "pyproject.toml.j2").read_text(encoding="utf-8"), undefined=StrictUndefined)
    data = ours["tool"]["setuptools"]["package-data"]["labkit"]
    text = template.render(project=ours["project"], extras=EXTRAS, data=data)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def solution_lines() -> dict[str, str]:
    """Lines that stand in a solution and in nothing any lesson shows -> the lesson they are from."""
    lessons = [read_lesson(path) for path in find_lessons([], solutions_folder())]
    shown = {
        line.strip() for lesson in lessons for cell in lesson.cells for line in _shown(cell).splitlines()
    }
    found: dict[str, str] = {}
    for lesson in lessons:
        solved = [
            line.strip() for c in lesson.cells if "exercise" in c.options for line in c.source.splitlines()
        ]
        found.update({line: lesson.name for line in solved if len(line) >= DISTINCTIVE and line not in shown})
    return found


def _shown(cell: Cell) -> str:
    """A cell as it is released."""
    return stub(cell.source, cell.options["exercise"]) if "exercise" in cell.options else cell.source


def _texts(value: Any) -> Iterator[str]:
    """All texts in what a JSON file holds, as they are when it is read: there a quote has no backslash."""
    match value:
        case str():
            yield value
        case list():
            yield from (text for each in value for text in _texts(each))
        case dict():
            yield from _texts(list(value.values()))


def leaked_lines(folder: Path) -> Iterator[str]:
    """Where a whole line of a solution stands in a notebook of the bundle, or anything of the grader's in
    it.
    """
    lines = solution_lines()
    for path in sorted(folder.rglob("*")):
        where = path.relative_to(folder)
        if path.is_file() and path.suffix == ".ipynb":
            texts = _texts(json.loads(path.read_text(encoding="utf-8")))
            released = {line.strip() for text in texts for line in text.splitlines()}
            yield from (f"{where}: {line!r} of {lines[line]}" for line in sorted(released & set(lines)))
        of_the_grader = path.name == "unseen.py" or path.suffix == ".diff"
        if of_the_grader or "autograder" in where.parts:
            yield f"{where}: belongs to the grader"
