"""What lies under submitted/ and is not graded: names that are no student's, and work in another place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from autograder.gradebook.links import linked
from autograder.gradebook.problems import in_words, student_id_problem
from labkit.checks.source.text import visible

MOST_NAMED = 5  # files that a message names


def not_gradable(course: Path, lesson: str, students: Sequence[str] = ()) -> dict[str, str]:
    """Who of these students (of all) handed in what is not graded for a lesson -> why, and what to do."""
    found = {}
    for folder in sorted((course / "submitted").iterdir()) if (course / "submitted").is_dir() else []:
        student = folder.name
        try:
            why = next(_reasons(folder, lesson), "")
        except OSError as problem:
            why = closed(problem)
        except Exception as problem:
            why = in_words(problem)
        if why:
            found[student if student_id_problem(student) == "" else repr(student)] = why
    return {name: why for name, why in found.items() if not students or name in students}


def closed(problem: OSError) -> str:
    """Why nothing is known of what a student's folder holds, and what to do."""
    return f"its folder cannot be looked into ({problem.strerror}): let who grades read it"


def in_the_way(work: Path, lesson: str) -> str:
    """The name of a folder in submitted/STUDENT/LESSON where a notebook of another name is copied to; empty
    where there is none, or nothing is copied, as there is one of the right name.
    """
    right, *others = (work / name for name in copies_of(lesson))
    if right.is_file() or right.is_symlink():
        return ""
    return next((path.name for path in (right, *others) if path.is_dir() and not path.is_symlink()), "")


def copies_of(lesson: str) -> tuple[str, str]:
    """What a notebook of another name is copied to, and what that copy is called until it is whole."""
    return f"{lesson}.ipynb", f".{lesson}.ipynb.part"


def _reasons(folder: Path, lesson: str) -> Iterator[str]:
    """Why what a student's folder has for a lesson is not graded; nothing where it is."""
    if not folder.is_dir():
        if _is_about(folder.stem, lesson):
            yield f"no student's folder: move it to submitted/STUDENT/{lesson}/"
        return
    work = folder / lesson
    if why := linked(work):
        if os.path.lexists(work):
            yield why
        return
    if work.is_dir():
        if problem := student_id_problem(folder.name):
            yield problem
        if name := in_the_way(work, lesson):
            yield (
                f"{name} is a folder, where a notebook's file belongs: take the folder away; expected a file "
                f"*.ipynb in {lesson}/, found {_names(work)}"
            )
        if not any(p.is_symlink() or p.is_file() for p in work.glob("[!.]*.ipynb")):
            yield f"no notebook: expected a file *.ipynb in {lesson}/, found {_names(work)}"
        return
    for path in sorted(folder.iterdir()):
        if _is_about(path.stem, lesson) or (path / f"{lesson}.ipynb").exists():
            what = "move it there" if path.is_file() or path.is_dir() else "take it away"
            found = f"{visible(path.name)}{_kind(path)}"
            yield f"expected a folder {lesson}/ with the notebook in it, found {found}; {what}"


def _is_about(name: str, lesson: str) -> bool:
    """Whether a name that is not the lesson's means the lesson."""
    meant = name.strip().casefold().replace("-", "_").replace(" ", "_")
    return lesson in meant or (meant.isdecimal() and int(meant) == int(lesson[:2]))


def _names(folder: Path) -> str:
    names = sorted(f"{visible(path.name)}{_kind(path)}" for path in folder.iterdir())
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}" if names else "nothing"


def _kind(path: Path) -> str:
    """What a notebook's name stands for, where that is no file."""
    return "" if path.is_file() else "/, a folder" if path.is_dir() else ", which is no file"
