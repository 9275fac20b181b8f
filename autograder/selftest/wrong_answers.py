"""Wrong answers a grader must catch: each a file, with the mistake in words and a diff against the reference.

`lessons/lesson_NN/wrong/EXERCISE/ID.diff` holds the mistake in one line, `breaks:` and the names of the
properties it must cost, and what `diff -u` shows between the exercise's cell in `solutions/` and that cell
with the mistake. Where most points stay with it, a line `keeps:` may say why that is fair. A diff fits to the
letter and to the line or not at all: a wrong answer that has become another one proves nothing.
"""

from __future__ import annotations

import difflib
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import whatthepatch
from whatthepatch.exceptions import WhatThePatchException

from autograder.grade.reference import lesson_source
from labkit.build.markup import Lesson, read_lesson
from labkit.checks import registry

LESSONS = Path(__file__).parents[1] / "lessons"
BREAKS = "breaks: "
KEEPS = "keeps: "
REFRESH = "`autograder wrong refresh` moves it to where these lines stand now, if they still do"


class WrongAnswerError(ValueError):
    """A wrong answer's file cannot be read, or does not fit the reference any more; the message names it."""


@dataclass(frozen=True)
class WrongAnswer:
    """One mistake. breaks: properties that must not pass. says: the mistake, in words. diff: from the
    reference cell of `exercise` to that cell with the mistake. path: the file it is from. keeps: why it is
    fair that most points are left, in a sentence.
    """

    id: str
    exercise: str
    breaks: tuple[str, ...]
    says: str
    diff: str
    path: Path
    keeps: str = ""

    def apply(self, source: str) -> str:
        """The reference cell with the mistake in it. WrongAnswerError says which line is not as expected."""
        parsed = list(whatthepatch.parse_patch(self.diff))
        if len(parsed) != 1:
            raise WrongAnswerError(f"{self.path}: expected one diff below {BREAKS!r}, found {len(parsed)}")
        try:
            return "\n".join(whatthepatch.apply_diff(parsed[0], source))
        except WhatThePatchException as problem:
            raise WrongAnswerError(
                f"{self.path} does not fit the reference of {self.exercise}: {problem}. {REFRESH}"
            ) from None

    def against(self, reference: str, answer: str) -> WrongAnswer:
        """The same mistake as the difference between these two texts of the cell."""
        lines = difflib.unified_diff(
            reference.splitlines(), answer.splitlines(), self.exercise, self.id, lineterm=""
        )
        return replace(self, diff="\n".join(lines))

    def __str__(self) -> str:
        """The text of its file."""
        keeps = f"{KEEPS}{self.keeps}\n" if self.keeps else ""
        return f"{self.says}\n{BREAKS}{', '.join(self.breaks)}\n{keeps}\n{self.diff}\n"


def wrong_answers(lesson: str) -> list[WrongAnswer]:
    """All wrong answers of a lesson given by its number or name, by exercise and id."""
    known = [exercise.id for exercise in registry.exercises(lesson)]
    found = [_read(path, f"{lesson[:2]}.{path.parent.name}") for path in _folder(lesson).glob("*/*.diff")]
    for answer in found:
        if answer.exercise not in known:
            raise WrongAnswerError(f"{answer.path}: expected a folder named after one of {', '.join(known)}")
    return sorted(found, key=lambda answer: (known.index(answer.exercise), answer.id))


def write_wrong_answer(exercise: str, name: str, edited: Path, says: str, breaks: Sequence[str]) -> Path:
    """Write the wrong answer `name` from a copy of the lesson's source in which the exercise's cell is wrong.

    WrongAnswerError when that cell is as it was, or another one is not.
    """
    for broken in breaks:
        registry.exercise(exercise).property(broken)
    reference, copy = (_cells(lesson) for lesson in (lesson_source(exercise[:2]), read_lesson(edited)))
    changed = [key for key in reference | copy if reference.get(key) != copy.get(key)]
    if changed != [exercise]:
        raise WrongAnswerError(
            f"{edited}: expected a change in the cell of {exercise} alone, found one in {changed or 'none'}"
        )
    path = _folder(exercise) / exercise.split(".", 1)[1] / f"{name}.diff"
    answer = WrongAnswer(name, exercise, tuple(breaks), says, "", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(answer.against(reference[exercise], copy[exercise])), encoding="utf-8")
    return path


def refresh(lesson: str) -> tuple[list[Path], list[str]]:
    """Write the diffs of a lesson again whose lines have only moved in the reference.

    Returns the files written, and a sentence for each whose lines are not there any more.
    """
    reference = _cells(lesson_source(lesson))
    moved, lost = [], []
    for answer in wrong_answers(lesson):
        source = reference[answer.exercise]
        try:
            now = answer.against(source, _applied_elsewhere(answer, source))
        except WrongAnswerError as problem:
            lost.append(str(problem))
            continue
        if now != answer:
            answer.path.write_text(str(now), encoding="utf-8")
            moved.append(answer.path)
    return moved, lost


def _read(path: Path, exercise: str) -> WrongAnswer:
    header, found, diff = path.read_text(encoding="utf-8").partition("\n--- ")
    says, _, below = header.strip().partition(f"\n{BREAKS}")
    breaks, _, keeps = below.partition(f"\n{KEEPS}")
    if not (found and says and breaks) or "\n" in says + breaks + keeps:
        raise WrongAnswerError(f"{path}: expected a line that says the mistake, {BREAKS!r} and a diff")
    names = tuple(name.strip() for name in breaks.split(","))
    return WrongAnswer(path.stem, exercise, names, says, f"--- {diff.rstrip(chr(10))}", path, keeps)


def _applied_elsewhere(answer: WrongAnswer, source: str) -> str:
    """The cell with the mistake, wherever in it the diff's lines stand."""
    body = answer.diff.split("\n", 2)[2]
    with tempfile.TemporaryDirectory(prefix="wrong-answer-") as folder:
        cell = Path(folder) / "cell"
        cell.write_text(f"{source}\n", encoding="utf-8")
        done = subprocess.run(
            ["git", "apply", "-"],
            input=f"--- a/cell\n+++ b/cell\n{body}\n",
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
        )
        if done.returncode:
            raise WrongAnswerError(
                f"{answer.path}: its lines are not in the reference: {done.stderr.strip()}"
            )
        return cell.read_text(encoding="utf-8").removesuffix("\n")


def _cells(lesson: Lesson) -> dict[str, str]:
    """Every cell of a lesson's source by the exercise it is of, and those of none by their number."""
    return {str(c.options.get("exercise", f"cell {n}")): c.source for n, c in enumerate(lesson.cells, 1)}


def _folder(lesson: str) -> Path:
    return LESSONS / f"lesson_{lesson[:2]}" / "wrong"
