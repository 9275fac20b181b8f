"""What students ask to be looked at again: a line in `regrade.txt` beside the notebook, or in the notebook's
metadata under `regrade_request`, such as "06.row-parallel-linear: my bias is added once, after the sum".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from autograder.grade.submitted import parse_notebook, read_bytes
from autograder.gradebook.links import linked
from autograder.gradebook.problems import in_words, student_id_problem
from labkit.checks import registry
from labkit.checks.source.notebook import BadNotebook, grade_id
from labkit.checks.source.text import visible

FILE = "regrade.txt"
KEY = "regrade_request"
LONGEST = 500  # characters of a reason
MOST = 20  # lines of one student
MOST_BYTES = 20_000  # of the file; characters, in the notebook
MOST_LINES = 1000  # looked through, empty ones too
LONGEST_LINE = 2 * LONGEST  # of which more is not looked at
_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Request:
    """What a student asks. exercise: an id; empty for the lesson as a whole. answer: the comment that a
    person wrote on that exercise.
    """

    student: str
    exercise: str
    reason: str
    answer: str = ""


def requests_of(course: Path, db_url: str, lesson: str) -> list[Request]:
    """What all students ask about a lesson, those without an answer first."""
    found = []
    with Gradebook(db_url) as gradebook:
        for folder in sorted((course / "submitted").glob(f"*/{lesson}")):
            student = folder.parent.name
            if student_id_problem(student) == "" and not linked(folder):
                for exercise, reason in _asked(folder, lesson):
                    answer = _comment(gradebook, lesson, student, exercise)
                    found.append(Request(student, exercise, reason, answer))
    return sorted(found, key=lambda request: (bool(request.answer), request.student))


def _asked(folder: Path, lesson: str) -> list[tuple[str, str]]:
    """The requests of one student; what keeps them from being read in their place, and in no other's."""
    try:
        return requests_in(folder, lesson)
    except Exception as problem:
        return [("", f"what is asked cannot be read: {in_words(problem)}"[:LONGEST])]


def requests_in(folder: Path, lesson: str) -> list[tuple[str, str]]:
    """(exercise, reason) of one submission; the exercise is empty where none of the lesson's is named."""
    lines = chain(_lines_of_file(folder / FILE), _lines_of_notebook(folder / f"{lesson}.ipynb"))
    known = {exercise.id for exercise in registry.exercises(lesson)}
    found = []
    cut = (line[:LONGEST_LINE] for line in islice(lines, MOST_LINES))
    written = (words for line in cut if (words := " ".join(visible(line).split())))
    for line in dict.fromkeys(islice(written, MOST)):
        name, colon, reason = line.partition(":")
        about = name.strip() if colon and name.strip() in known else ""
        found.append((about, (reason if about else line).strip()[:LONGEST]))
    return [(exercise, reason) for exercise, reason in found if reason]


def _lines_of_file(path: Path) -> Iterator[str]:
    try:
        if path.exists():  # which raises too where the folder is closed
            yield from read_bytes(path, MOST_BYTES).decode("utf-8", "replace").splitlines()
    except BadNotebook as problem:
        yield str(problem)
    except OSError as problem:
        yield f"{path.name} cannot be read: {problem.strerror}"


def _lines_of_notebook(path: Path) -> Iterator[str]:
    try:
        data = read_bytes(path)
        metadata = parse_notebook(data).raw.get("metadata") if KEY.encode() in data else None
    except (BadNotebook, OSError):
        return
    asked: Any = metadata.get(KEY) if isinstance(metadata, dict) else None
    if isinstance(asked, dict):
        for exercise, reason in asked.items():
            is_text = isinstance(reason, str)
            told = reason if is_text else f"expected a text, found {_KINDS.get(type(reason), 'a number')}"
            yield f"{exercise[:LONGEST_LINE]}: {told[:LONGEST_LINE]}"
    elif isinstance(asked, str):
        yield from asked[:MOST_BYTES].splitlines()


def _comment(gradebook: Gradebook, lesson: str, student: str, exercise: str) -> str:
    try:
        found = gradebook.find_comment(grade_id(exercise), lesson, lesson, student) if exercise else None
    except MissingEntry:
        return ""
    return str(found.comment or "") if found else ""
