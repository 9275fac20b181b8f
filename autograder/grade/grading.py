"""From a notebook file to a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.grade.deciding import checks_digest
from autograder.grade.evidence import Baseline
from autograder.grade.harness import Graded, grade_cells, without_points
from autograder.grade.reading import ReadCell, read_within_limits
from autograder.grade.records import Record
from autograder.grade.submitted import chosen_name, collected_from, parse_notebook, places_of, read_bytes
from autograder.sandbox.sandbox import Sandbox
from labkit.checks import registry
from labkit.checks.exercise import Exercise
from labkit.checks.source.notebook import BadNotebook
from labkit.checks.source.text import visible

UNREADABLE = "unreadable"  # in the place of a digest


@dataclass(frozen=True)
class Conditions:
    """What is the same for every submission of a run."""

    lesson: str  # the assignment's name: 06_tensor_parallel_ffn
    seed: int
    sandbox: Sandbox
    baseline: Baseline | None = None  # what the reference sends, where it was measured

    @property
    def exercises(self) -> tuple[Exercise, ...]:
        """The exercises of the lesson, in its order."""
        return registry.exercises(self.lesson)


def grade_notebook(
    path: Path,
    student: str,
    conditions: Conditions,
    only: Sequence[str] = (),
    on_graded: Callable[[Graded], None] = lambda graded: None,
) -> Record:
    """Grade a notebook file, whatever is in it. `only`: exercise ids; all of the lesson's without it."""
    exercises = [e for e in conditions.exercises if not only or e.id in only]
    record = _empty_record(path, student, conditions)
    try:
        data = read_bytes(path)
        record.sha256 = hashlib.sha256(data).hexdigest()
        _, cells, record.places = read_submission(data, record.notebook, conditions.exercises)
    except BadNotebook as problem:
        record.problem = str(problem)
        record.graded = {e.id: Graded(without_points(e, "error", str(problem))) for e in exercises}
        return record
    record.collected = collected_from(cells)
    record.chosen_name = chosen_name(cells)
    record.notes += [cell.parsed.problem for cell in cells if cell.parsed and cell.parsed.problem]
    for graded in grade_cells(
        exercises, cells, conditions.sandbox, conditions.seed, conditions.baseline, on_graded
    ):
        record.graded[graded.report.exercise] = graded
    return record


def read_submission(
    data: bytes, name: str, exercises: Sequence[Exercise]
) -> tuple[dict[str, Any], list[ReadCell], dict[str, int]]:
    """A notebook's JSON; its code cells, read within limits; and which of its cells has which exercise's
    answer. BadNotebook says why it cannot be read.
    """
    notebook = parse_notebook(data, name)
    cells = read_within_limits(notebook.cells)
    return notebook.raw, cells, places_of(cells, exercises)


def digest_of(path: Path) -> str:
    """The digest of a submitted file's bytes; empty for what is no file, as in its record, and UNREADABLE, as
    in no record, for what this machine cannot read now.
    """
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except BadNotebook:
        return ""
    except OSError:
        return UNREADABLE


def _empty_record(path: Path, student: str, conditions: Conditions) -> Record:
    return Record(
        lesson=conditions.lesson,
        student=student,
        notebook=visible(path.name),  # a name may hold bytes that are no text
        sha256="",
        seed=conditions.seed,
        sandbox=conditions.sandbox.name,
        checks=checks_digest(conditions.lesson),
    )
