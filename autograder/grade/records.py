"""What the harness found for one submission, as a JSON file: the only source of grades."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from autograder.grade.harness import Graded
from autograder.grade.scan import Flag
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id
from labkit.whole_file import write_whole

FOLDER = "records"


@dataclass
class Record:
    """One graded submission.

    notebook: the file's name. sha256: of its bytes. seed: what the cases were drawn from. checks: digest of
    what decides the points, so that a changed check grades again. problem: why the file could not be read
    as a notebook, if so. places: which cell of the notebook, from 0, has an exercise's answer. collected:
    which of them hold definitions. chosen_name: the student's own, for a ranking.
    """

    lesson: str
    student: str
    notebook: str
    sha256: str
    seed: int
    sandbox: str
    checks: str
    graded_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    graded: dict[str, Graded] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    collected: list[int] = field(default_factory=list)
    chosen_name: str = ""

    @property
    def points(self) -> float:
        """Points earned in all exercises; those held back are not among them."""
        return sum(g.report.points for g in self.graded.values())

    @property
    def max_points(self) -> float:
        """Points that could be earned."""
        return sum(g.report.max_points for g in self.graded.values())

    @property
    def ungraded(self) -> list[str]:
        """Exercises that could not be graded through no fault of the student's."""
        return [name for name, g in self.graded.items() if g.report.verdict == "could_not_be_graded"]

    @property
    def not_attempted(self) -> list[str]:
        """Exercises that were left as they were handed out."""
        return [name for name, g in self.graded.items() if g.report.verdict == "not_attempted"]

    @property
    def held(self) -> list[str]:
        """Graded cells whose points wait for a person: neither earned nor lost."""
        return [grade_id(name, held) for name, g in self.graded.items() for held in g.held]

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Exercise and flag, for a person to look at."""
        return [(name, flag) for name, g in self.graded.items() for flag in g.flags]

    def made_of(self, sha256: str, seed: int, sandbox: str, checks: str) -> bool:
        """Whether this is of those bytes under those conditions."""
        return (self.sha256, self.seed, self.sandbox, self.checks) == (sha256, seed, sandbox, checks)

    def fits(self, sha256: str, seed: int, sandbox: str, checks: str) -> bool:
        """Whether this is the grade of those bytes under those conditions, with nothing left to grade
        again, and no exercise left out.
        """
        complete = all(exercise.id in self.graded for exercise in registry.exercises(self.lesson))
        return complete and self.made_of(sha256, seed, sandbox, checks) and not self.ungraded

    def verify_json(self) -> dict[str, Any]:
        """What `autograder verify --json` prints."""
        exercises = {}
        for name, g in self.graded.items():
            rows = [
                {
                    "name": r.name,
                    "passed": r.passed,
                    "points": r.points,
                    "max_points": r.max_points,
                    "message": r.message,
                }
                for r in g.report.rows
            ]
            exercises[name] = {
                "points": g.report.points,
                "max_points": g.report.max_points,
                "verdict": g.report.verdict,
                "stops": [{"text": stop.text, "case": stop.case} for stop in g.report.stops],
                "properties": rows,
            } | ({"held_back": g.held} if g.held else {})
        return {"exercises": exercises}


def path_of(course: Path, lesson: str, student: str) -> Path:
    """Where a student's record is kept. The name is a digest too, so that no student id can name
    another's file.
    """
    plain = "".join(c for c in student if c.isascii() and (c.isalnum() or c in "-_."))
    readable = plain.lstrip(".")[:40]  # of é.dupont too: files with a dot in front are no records
    return (
        course
        / FOLDER
        / lesson
        / f"{readable}-{hashlib.sha256(student.encode(errors='replace')).hexdigest()[:12]}.json"
    )


def save(course: Path, record: Record) -> Path:
    """Write a record: it is there whole or not at all, whenever this process is killed."""
    path = path_of(course, record.lesson, record.student)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(record))
    return path


def load(course: Path, lesson: str, student: str) -> Record | None:
    """A student's record; None when there is none, or none that can be read (it is then made again)."""
    return load_file(path_of(course, lesson, student))


def load_file(path: Path) -> Record | None:
    """The record in a file; None when it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, ValueError):
        return None


def load_all(course: Path, lesson: str) -> list[Record]:
    """All records of a lesson that can be read, by student."""
    found = [load_file(path) for path in _files(course, lesson)]
    return sorted((r for r in found if r is not None), key=lambda record: record.student)


def unreadable(course: Path, lesson: str) -> list[Path]:
    """The records that cannot be read: cut off, of another version, or another user's alone."""
    return [path for path in _files(course, lesson) if load_file(path) is None]


def _files(course: Path, lesson: str) -> list[Path]:
    return sorted((course / FOLDER / lesson).glob("[!.]*.json"))
