"""Which files decide the grades of a lesson: its checks, its unseen cases, its reference, and what those
import.

A record keeps the digest of their contents. So a changed check grades again exactly the lessons it can
change, and a wrong answer added to the self-test grades nobody again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from autograder.grade.imports import Tree
from autograder.grade.reference import REPOSITORY, lessons_put_in
from labkit.build.course import find_lessons
from labkit.build.markup import read_lesson
from labkit.checks import registry

# Where following imports ends: these start ranks, say what they wait for, or show something to a person, and
# decide no points.
STOPS = (
    *("labkit.launch", "labkit.slurm", "labkit.jupyter", "labkit.show", "labkit.magics"),
    *("labkit.checks.practice", "labkit.checks.scoreboard", "labkit.record.state"),
)
# What takes every exercise's points from its evidence, imported by no lesson.
JUDGING = ("labkit.checks.judge", "labkit.checks.execute", "labkit.checks.source.submission")


@cache
def checks_digest(lesson: str) -> str:
    """The digest of the files that decide a lesson's points, as they were when first asked for."""
    return digest_of_files(lesson)


def digest_of_files(lesson: str, root: Path = REPOSITORY) -> str:
    """A digest of the contents of the files that decide a lesson's points, and of their names."""
    digest = hashlib.sha256()
    for path in deciding_files(lesson, root):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def deciding_files(lesson: str, root: Path = REPOSITORY) -> list[Path]:
    """The files that can change a grade of a lesson, in the repository at `root`, sorted."""
    tree = Tree(root, STOPS)
    references = [find_lessons([name], root / "solutions")[0] for name in _references(lesson)]
    found = {*references, *_own_files(lesson, root)}
    for path in [p for p in found if p.suffix == ".py" and p not in references]:
        found |= tree.behind(path)
    for name in JUDGING:
        found |= tree.behind(tree.file_of(name))
    for path in references:
        for source in _code(path):
            found |= tree.behind_source(source)
    return sorted(found)


def _own_files(lesson: str, root: Path) -> Iterator[Path]:
    """What stands in the lesson's own folders and decides: visible cases, judges and data; unseen cases."""
    checks, unseen = (root / top / f"lesson_{lesson[:2]}" for top in ("labkit/checks", "autograder/lessons"))
    yield from (p for p in checks.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    yield from (p for p in unseen.glob("*") if p.name == "unseen.py" or p.suffix == ".json")


def _references(lesson: str) -> list[str]:
    """The lessons whose reference solutions are run: its own, and those of the exercises it builds on."""
    put_in = (name for exercise in registry.exercises(lesson) for name in lessons_put_in(exercise))
    return list(dict.fromkeys([lesson[:2], *put_in]))


def _code(path: Path) -> Iterator[str]:
    """The source of a lesson's code cells, without the lines that are IPython's alone."""
    for cell in read_lesson(path).cells:
        if cell.kind == "code":
            yield "\n".join("" if line.startswith(("%", "!")) else line for line in cell.source.split("\n"))
