"""Turns instructor's notebooks into the students' with nbgrader's own generate_assignment."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearSolutions, SaveCells
from traitlets.config import Config

from labkit.build.rules import stub_line


class BuildError(Exception):
    """nbgrader could not make the students' notebook. The message is nbgrader's own."""


class StubSolutions(ClearSolutions):
    """nbgrader's ClearSolutions, with a stub that names the exercise when it is run unwritten."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: Any, cell_index: int
    ) -> tuple[NotebookNode, Any]:
        exercise_id = cell.metadata.get("labkit", {}).get("exercise")
        if exercise_id:
            self.code_stub = {"python": stub_line(exercise_id)}
        return super().preprocess_cell(cell, resources, cell_index)


def release_preprocessors() -> list[type]:
    """generate_assignment's steps as this course runs them. For a course's nbgrader_config too."""
    steps = GenerateAssignment().preprocessors
    return [StubSolutions if step is ClearSolutions else step for step in steps]


def release(name: str, source: NotebookNode) -> NotebookNode:
    """The students' notebook made from the instructor's. Leaves nothing behind, and writes no gradebook."""
    with tempfile.TemporaryDirectory(prefix="labkit-build-") as root:
        course = Path(root)
        written = course / "source" / name / f"{name}.ipynb"
        written.parent.mkdir(parents=True)
        nbformat.write(source, written)
        _generate(course, name)
        return nbformat.read(course / "release" / name / f"{name}.ipynb", as_version=4)


def _generate(course: Path, name: str) -> None:
    config = Config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.assignment_id = name
    config.GenerateAssignment.no_database = True
    config.GenerateAssignment.preprocessors = [s for s in release_preprocessors() if s is not SaveCells]
    complaints = Complaints()
    directory = CourseDirectory(config=config)
    converter = GenerateAssignment(coursedir=directory, config=config, log=complaints.log)
    try:
        converter.start()
    except NbGraderException as error:
        raise BuildError(f"{name}: " + "\n".join([*complaints.messages, str(error)])) from error


class Complaints(logging.Handler):
    """Keeps what nbgrader logs as errors, which its exception only points to. log: what it is to log to.
    errors: those that were handled when it did.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.errors: list[BaseException] = []
        self.log = logging.Logger("labkit.nbgrader")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if (error := sys.exception()) is not None:
            self.errors.append(error)
