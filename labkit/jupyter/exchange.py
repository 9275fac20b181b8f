"""Releases a lesson to nbgrader's exchange, and looks whether its permissions keep what they should.

The exchange is a folder that all students and the instructor reach, as nbgrader's documentation lays it out:

    ROOT               everybody may enter and write: nbgrader asks for that, even of a student who fetches
    ROOT/COURSE        the instructor's
      outbound/LESSON  everybody may read it
      inbound/         everybody may leave something there, and only the instructor may see what there is

What students hand in can be read by all who know its name, which ends in 72 random bits: that nobody can list
`inbound` is what keeps it from the others.
"""

from __future__ import annotations

import contextlib
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OTHERS = {"r": stat.S_IROTH, "w": stat.S_IWOTH, "x": stat.S_IXOTH}


class CannotRelease(Exception):
    """The lesson could not be released, and what to do."""


@dataclass(frozen=True)
class Released:
    """A lesson in the exchange. problems: permissions that are not right, each with its remedy; best none."""

    folder: Path
    course_id: str
    problems: tuple[str, ...]


def release(lesson: str, course: Path, force: bool = False) -> Released:
    """Copy release/LESSON of a course's folder to the exchange with nbgrader, and look at the permissions.

    lesson: its number or full name.  force: replace what was released before.
    Raises CannotRelease when something is missing, or nbgrader refuses.
    """
    try:
        from nbgrader.apps import ReleaseAssignmentApp
        from nbgrader.exchange.default import ExchangeReleaseAssignment
    except ImportError as error:
        raise CannotRelease('nbgrader is not installed here; run `pip install -e ".[grade]"`') from error
    name = _released_name(lesson, course)
    with contextlib.chdir(course):  # where nbgrader looks for its configuration
        app = ReleaseAssignmentApp()
        app.initialize([name, *(["--force"] if force else [])])
        if not app.coursedir.course_id:
            line = 'c.CourseDirectory.course_id = "tml"'
            raise CannotRelease(f"no course id; add a line like {line} to {course}/nbgrader_config.py")
        try:
            app.start()
        except SystemExit as error:
            raise CannotRelease(f"nbgrader did not release {name}: the reason is above") from error
        told = ExchangeReleaseAssignment(config=app.config, coursedir=app.coursedir).root
        root = Path(told).absolute()  # it may be told from the course's folder on
    folder = root / app.coursedir.course_id / "outbound" / name
    return Released(folder, app.coursedir.course_id, tuple(problems(root, app.coursedir.course_id, course)))


def problems(root: Path, course_id: str, course: Path) -> Iterator[str]:
    """What others may do with the exchange and the course's folder and should not, or should and may not.

    Looks at the permission bits of others alone: neither at groups nor at access control lists.
    """
    for above in root.parents:
        yield from _must(above, "x", "students do not reach the exchange")
    yield from _must(root, "rwx", "nbgrader refuses to fetch and to submit")
    if not root.stat().st_mode & stat.S_ISVTX:
        yield f"{root}: everybody may rename or remove a course: chmod +t {shlex.quote(str(root))}"
    exchange = root / course_id
    for path in (exchange, exchange / "inbound", *_below(exchange / "outbound")):
        inbound = path.name == "inbound"
        yield from _must(path, "wx" if inbound else "rx" if path.is_dir() else "r", "students cannot use it")
        if inbound:
            yield from _must_not(path, "r", "students can read what others hand in")
        else:
            yield from _must_not(path, "w", "everybody may replace what is released")
    yield from open_to_others(course)


def open_to_others(course: Path) -> Iterator[str]:
    """A sentence when others may enter a course's folder, where the solutions and the gradebook are."""
    if all(above.stat().st_mode & stat.S_IXOTH for above in course.resolve().parents):
        yield from _must_not(course, "rwx", "everybody can read the solutions and the gradebook")


def _below(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (path for path in folder.rglob("*") if path.exists())  # a link to nothing gives nothing away


def _must(path: Path, wanted: str, otherwise: str) -> Iterator[str]:
    """A sentence when others may not do all of `wanted` (of r, w, x) with `path`."""
    lacking = "".join(letter for letter in wanted if not path.stat().st_mode & _OTHERS[letter])
    if lacking:
        yield f"{path}: {otherwise}: chmod o+{lacking} {shlex.quote(str(path))}"


def _must_not(path: Path, denied: str, otherwise: str) -> Iterator[str]:
    """A sentence when others may do something of `denied` with `path`."""
    excess = "".join(letter for letter in denied if path.stat().st_mode & _OTHERS[letter])
    if excess:
        yield f"{path}: {otherwise}: chmod o-{excess} {shlex.quote(str(path))}"


def _released_name(lesson: str, course: Path) -> str:
    """The folder's name below release/ of the lesson with this number or name."""
    if not (course / "nbgrader_config.py").is_file():
        raise CannotRelease(
            f"{course} is not a course: no nbgrader_config.py; `autograder init {course}` makes one"
        )
    there = sorted(path.name for path in (course / "release").glob("*") if path.is_dir())
    for name in there:
        if lesson in (name, name.split("_")[0]):
            return name
    raise CannotRelease(
        f"no lesson {lesson} in {course / 'release'} (there: {', '.join(there) or 'none'}); "
        f"`autograder add {lesson} --course {course}` puts it there"
    )
