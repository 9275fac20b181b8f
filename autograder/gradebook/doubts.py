"""Whose points may not be those of their work: answers that seem to stand where grading does not look, and
grades of what is no longer there. For a person to look at; it changes no points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autograder.grade.grading import digest_of
from autograder.grade.records import FOLDER, Record, path_of
from autograder.grade.submitted import read_notebook
from autograder.gradebook.course import Course, Submitted
from autograder.gradebook.misplaced import closed, in_the_way
from autograder.gradebook.problems import in_words
from labkit.checks import registry
from labkit.checks.source.notebook import BadNotebook

MOST_NAMED = 5  # files, cells or names in a sentence
# What a text defines at the top level. Not parsed: it may be hostile, or no Python.
_DEFINES = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=(?!=)", re.MULTILINE)


def doubts_about(course: Course, lesson: str, records: Sequence[Record]) -> dict[str, list[str]]:
    """Student -> sentences: what was found, and what to do. Students without any are left out."""
    there = {submitted.student: submitted for submitted in course.submissions(lesson)}
    found = {}
    for record in records:
        submitted = there.get(record.student)
        try:
            told = [_gone(course, record)] if submitted is None else list(_elsewhere(record, submitted))
        except Exception as problem:  # of one student's: the others are told of
            told = [in_words(problem)]
        if told:
            found[record.student] = told
    return found


def _gone(course: Course, record: Record) -> str:
    folder = course.root / "submitted" / record.student / record.lesson
    try:
        in_the_way(folder, record.lesson)
        next(folder.iterdir(), None)
    except FileNotFoundError:
        pass
    except OSError as problem:
        return f"{closed(problem)}. These are the points of what was there at {record.graded_at}"
    kept = path_of(course.root, record.lesson, record.student).name
    return (
        f"no notebook lies in submitted/{record.student}/{record.lesson}/ any more: these are the points of "
        f"what was there at {record.graded_at}. Put it back; or, where somebody has left the course, remove "
        f"{FOLDER}/{record.lesson}/{kept}, and their scores in all lessons with `nbgrader db student remove "
        f"{record.student} --force`"
    )


def _elsewhere(record: Record, submitted: Submitted) -> Iterator[str]:
    """Where the answers to exercises that count as not attempted seem to be."""
    if not record.not_attempted or digest_of(submitted.notebook) != record.sha256:
        return
    try:
        raw = read_notebook(submitted.notebook).raw
    except (BadNotebook, OSError):
        return
    again = f"`autograder grade {record.lesson[:2]}`"
    nothing = len(record.not_attempted) == len(record.graded)
    if nothing and submitted.others:
        yield (
            f"nothing is attempted in {record.notebook}, and another notebook lies beside it "
            f"({_some(submitted.others)}): where that is the work, take {record.notebook} away, name the "
            f"other one {record.lesson}.ipynb, and run {again}"
        )
    if nothing and (other := _other_lesson(raw, record.lesson)):
        number, names = other
        yield (
            f"{record.notebook} defines what lesson {number} asks for ({_some(names)}) and nothing of lesson "
            f"{record.lesson[:2]}: ask for the notebook of this one"
        )
    if at := _in_text(raw, record.not_attempted):
        exercises = list(dict.fromkeys(exercise for _, exercise in at))
        cells = list(dict.fromkeys(str(number) for number, _ in at))
        ask, where = "ask" if exercises[1:] else "asks", "cells" if cells[1:] else "cell"
        yield (
            f"what {_some(exercises)} {ask} for stands in cells that are not code ({where} {_some(cells)} of "
            f"{record.notebook}): make them code cells where that is the work, and run {again}"
        )


def _other_lesson(raw: dict[str, Any], lesson: str) -> tuple[str, list[str]] | None:
    """The lesson that most names in a notebook's code are of, and these; None where one is of its own."""
    defined = {name for _, text in _cells(raw, code=True) for name in _defined(text)}
    asked = {number: _names(number) & defined for number in registry.lessons()}
    if asked[lesson[:2]] or not any(asked.values()):
        return None
    number = max(asked, key=lambda number: len(asked[number]))
    return number, sorted(asked[number])


def _names(lesson: str) -> set[str]:
    return {name for exercise in registry.exercises(lesson) for name in exercise.names}


def _in_text(raw: dict[str, Any], exercises: Sequence[str]) -> list[tuple[int, str]]:
    """(cell, exercise) where a cell that is not code defines what one of these exercises asks for."""
    wanted = {name: exercise for exercise in exercises for name in registry.exercise(exercise).names}
    return [
        (number, wanted[name])
        for number, text in _cells(raw, code=False)
        for name in _defined(text)
        if name in wanted
    ]


def _cells(raw: dict[str, Any], code: bool) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of a notebook's cells that are code, or of the others."""
    for number, cell in enumerate(raw["cells"], 1):
        if isinstance(cell, dict) and (cell.get("cell_type") == "code") == code:
            source = cell.get("source")
            parts = source if isinstance(source, list) else [source]
            yield number, "".join(part for part in parts if isinstance(part, str))


def _defined(text: str) -> Iterator[str]:
    return (found[1] or found[2] for found in _DEFINES.finditer(text))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more
