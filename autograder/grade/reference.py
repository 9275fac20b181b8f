"""What only the grader has: the reference solutions, read from the lessons' sources, and the unseen cases."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from labkit.build.course import find_lessons
from labkit.build.markup import Lesson, read_lesson
from labkit.build.rules import stub
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.notebook import earlier_names
from labkit.checks.source.submission import Cell, Submission, collect

REPOSITORY = Path(__file__).parents[2]
LABEL = (
    "<course"  # how the labels of its cells begin: in angle brackets, they are never taken for the student's
)


def solutions_folder() -> Path:
    """Where the lessons' sources are: beside this package."""
    return REPOSITORY / "solutions"


@cache
def lesson_source(lesson: str) -> Lesson:
    """The source of a lesson given by its two digits or its name. LookupError names the lessons there are."""
    return read_lesson(find_lessons([lesson], solutions_folder())[0])


def graded_lessons() -> list[str]:
    """The names of the lessons that have both a source and checks."""
    with_checks = set(registry.lessons())
    return [path.stem for path in find_lessons([], solutions_folder()) if path.stem[:2] in with_checks]


@cache
def reference_cells(lesson: str) -> tuple[Cell, ...]:
    """A lesson's code cells as its author wrote them, solutions in place."""
    cells = [cell for cell in lesson_source(lesson).cells if cell.kind == "code"]
    return tuple(Cell(f"{LABEL} {c.line}>", c.source, c.options.get("exercise")) for c in cells)


def solved_cells(lesson: str) -> tuple[Cell, ...]:
    """A lesson's code cells as if a student had written the reference solutions."""
    return tuple(replace(c, label=f"cell {n}") for n, c in enumerate(reference_cells(lesson), 1))


@cache
def stand_in_cells(lesson: str) -> tuple[Cell, ...]:
    """A lesson's reference as it goes in beside a student's code: without comments, texts about it and the
    marks of solutions.
    """
    return tuple(replace(cell, source=bare_code(cell.source)) for cell in reference_cells(lesson))


def bare_code(source: str) -> str:
    """Python without comments, and without the texts about its functions and classes."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source  # with IPython's own lines: nothing an exercise is built on
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def stub_cells(lesson: str) -> tuple[Cell, ...]:
    """A lesson's code cells as they are released, nothing written yet."""
    cells = solved_cells(lesson)
    return tuple(replace(c, source=stub(c.source, c.exercise)) if c.exercise else c for c in cells)


def graded_submission(cells: Sequence[Cell], exercise: Exercise) -> tuple[Submission, Submission]:
    """The student's statements with reference versions of earlier exercises, and the student's own
    throughout.
    """
    earlier = earlier_names(exercise)
    own = collect(cells, exercise.id, exercise.names, earlier)
    if not exercise.builds_on:
        return own, own
    reference = [cell for lesson in lessons_put_in(exercise) for cell in stand_in_cells(lesson)]
    return collect(cells, exercise.id, exercise.names, earlier, reference, earlier), own


def shown_seed(seed: int) -> int:
    """The seed that cases drawn for a lesson's seed carry to the ranks: the way back would take 2**52 tries,
    so nobody there can draw the inputs of other ranks, which come from the lesson's seed itself.
    """
    return int.from_bytes(hashlib.sha256(f"cases of {seed}".encode()).digest()[:4], "big")


def all_cases(exercise: Exercise, seed: int) -> list[Case]:
    """The visible cases and the unseen ones, drawn for this seed. Names must differ."""
    cases = [*exercise.cases(seed), *hidden_cases(exercise, seed)]
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise ValueError(f"{exercise.id}: case names must differ, got {sorted(names)}")
    return cases


def hidden_cases(exercise: Exercise, seed: int) -> list[Case]:
    """The unseen cases of an exercise; none where the lesson has no file of them."""
    module = f"autograder.lessons.lesson_{exercise.lesson}.unseen"
    if importlib.util.find_spec(module) is None:
        return []
    drawn = importlib.import_module(module).CASES.get(exercise.id, _no_cases)(seed)
    return [Case(**{**case.to_json(), "hidden": True}) for case in drawn]


def distinctive_lines(exercise: Exercise) -> set[str]:
    """Lines of the reference versions put in place for an exercise that must not reach a student."""
    texts = (
        cell.source
        for earlier in lessons_put_in(exercise)
        for cell in (*reference_cells(earlier), *stand_in_cells(earlier))
        if cell.exercise
    )
    return {line.strip() for text in texts for line in text.splitlines() if len(line.strip()) >= 20}


def lessons_put_in(exercise: Exercise) -> list[str]:
    """The two digits of the lessons whose reference is put in place for an exercise."""
    return list(dict.fromkeys(name.split(".", 1)[0] for name in exercise.builds_on))


def _no_cases(seed: int) -> list[Case]:
    return []
