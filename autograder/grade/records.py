"""What the harness found for one submission, as a JSON file: the only source of grades."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from autograder.grade.harness import Graded
from autograder.grade.scan import Flag
from labkit.checks import registry
from labkit.checks.report import PropertyResult, Report
from labkit.checks.source.notebook import grade_id

FOLDER = "records"


@dataclass
class Record:
    """One graded submission.

    notebook: the file's name. sha256: of its bytes. seed: what the cases were drawn from. checks: digest of
    what decides the points, so that a changed check grades again. problem: why the file could not be read
    as a notebook, if so.
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
    def held(self) -> list[str]:
        """Graded cells whose points wait for a person: neither earned nor lost."""
        return [grade_id(name, held) for name, g in self.graded.items() for held in g.held]

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Exercise and flag, for a person to look at."""
        return [(name, flag) for name, g in self.graded.items() for flag in g.flags]

    def fits(self, sha256: str, seed: int, sandbox: str, checks: str) -> bool:
        """Whether this is the grade of those bytes under those conditions, with nothing left to grade
        again.
        """
        return (self.sha256, self.seed, self.sandbox, self.checks) == (
            sha256,
            seed,
            sandbox,
            checks,
        ) and not self.ungraded

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the inverse."""
        graded = {
            name: g.report.to_json()
            | {"flags": [asdict(f) for f in g.flags], "held": g.held, "seconds": round(g.seconds, 3)}
            for name, g in self.graded.items()
        }
        return {**{k: v for k, v in self.__dict__.items() if k != "graded"}, "exercises": graded}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """The inverse of `to_json`. KeyError, TypeError or ValueError for anything else."""
        plain = {k: v for k, v in data.items() if k != "exercises"}
        return cls(**plain, graded={name: _graded(name, g) for name, g in data["exercises"].items()})

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
                "properties": rows,
            } | ({"held_back": g.held} if g.held else {})
        return {"exercises": exercises}


def _graded(name: str, data: Mapping[str, Any]) -> Graded:
    rows = [PropertyResult(**{k: v for k, v in row.items() if k != "message"}) for row in data["properties"]]
    report = Report(name, registry.exercise(name).title, rows, data["verdict"], list(data["notes"]))
    return Graded(report, [Flag(**flag) for flag in data["flags"]], data["seconds"], data["held"])


def path_of(course: Path, lesson: str, student: str) -> Path:
    """Where a student's record is kept. The name is a digest too, so that no student id can name
    another's file.
    """
    readable = "".join(c for c in student if c.isascii() and (c.isalnum() or c in "-_."))[:40]
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
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(record.to_json(), file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return path


def load(course: Path, lesson: str, student: str) -> Record | None:
    """A student's record; None when there is none, or none that can be read (it is then made again)."""
    return load_file(path_of(course, lesson, student))


def load_file(path: Path) -> Record | None:
    """The record in a file; None when it cannot be read."""
    try:
        return Record.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load_all(course: Path, lesson: str) -> list[Record]:
    """All records of a lesson, by student."""
    found = [load_file(path) for path in sorted((course / FOLDER / lesson).glob("[!.]*.json"))]
    return sorted((r for r in found if r is not None), key=lambda record: record.student)


@cache
def checks_digest(lesson: str) -> str:
    """A digest of the files that decide a lesson's points."""
    digest = hashlib.sha256()
    for path in deciding_files(lesson):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def deciding_files(lesson: str) -> list[Path]:
    """The checks that all lessons share, the lesson's own, its unseen cases and its reference solution."""
    from autograder.grade.reference import REPOSITORY, lesson_source

    folders = [Path(registry.__file__).parent, REPOSITORY / "autograder" / "lessons"]
    found = [(path, path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*"))]
    return [*(path for path, name in found if _concerns(name, lesson)), lesson_source(lesson).path]


def _concerns(name: Path, lesson: str) -> bool:
    """Whether a file, named from its folder, is shared by all lessons or this one's."""
    own = f"lesson_{lesson[:2]}"
    of_another = any(part.startswith("lesson_") and not part.startswith(own) for part in name.parts)
    return name.suffix in (".py", ".json") and not of_another
