"""What can be wrong with a course's folder, and with the name of a student's."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import sqlite3
import traceback
from collections.abc import Iterable

from sqlalchemy.exc import DBAPIError

from autograder.sandbox.sandbox import CouldNotEnd

LONGEST_ID = 128  # characters
LONGEST_MESSAGE = 500  # characters of what an error says
NOT_IN_AN_ID = "/\\{}*?[]"


class CourseError(RuntimeError):
    """Something about the course's folder has to be put right first; the message says what."""


class CannotGoOn(CourseError):
    """The course's own disk or gradebook takes nothing more: to grade on would be in vain."""


# What a person can put right, and is told in a sentence. Whatever else is raised is a fault of this program.
PROBLEMS = (CourseError, CouldNotEnd, OSError, DBAPIError)


_AGAIN = "run the command again; what was graded is kept"
_OF_A_DISK = {
    errno.ENOSPC: f"make room, and {_AGAIN}",
    errno.EDQUOT: f"make room, and {_AGAIN}",
    errno.EROFS: f"mount it so that it can be written to, and {_AGAIN}",
    errno.EIO: f"the disk, or the server it is on, fails: when it works, {_AGAIN}",
}
_GRADEBOOK = (
    "Where another program writes to it, as formgrader does, run the command again when that is done. Where "
    "it is broken, put a copy back; or move it away, and `autograder grade` writes it again from records/, "
    "all but due dates, and the points and comments that a person gave"
)


def told(problem: Exception) -> str:
    """What is to be said of one of PROBLEMS, and what to do."""
    match problem:
        case DBAPIError():
            why = " ".join(str(problem.orig).split())
            end = "" if why.endswith(("?", ".")) else "."
            return f"the gradebook cannot be used: {why}{end} {_of_a_gradebook(problem)}"
        case shutil.Error(args=[[[source, target, why], *more], *_]):  # as `copytree` raises it, with all
            others = f", nor {len(more)} more files or folders" if more else ""
            return f"{source} could not be copied to {target}{others}: {_with_advice(str(why))}"
        case OSError(errno=number) if number in _OF_A_DISK:
            return f"{problem}: {_OF_A_DISK[number]}"
    return str(problem)


def cause_of(errors: Iterable[BaseException]) -> Exception | None:
    """The first error of the system's or the gradebook's that these were raised for, or are; None where there
    is none, or something else was to be told of it.
    """
    for error in errors:
        found: BaseException | None = error
        while found is not None and not isinstance(found, PROBLEMS):
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if isinstance(found, (OSError, DBAPIError)):
            return found
    return None


def _of_a_gradebook(problem: DBAPIError) -> str:
    if not isinstance(problem.orig, sqlite3.Error):
        return (
            "Expected a server that answers at the address in nbgrader_config.py, c.CourseDirectory.db_url: "
            f"start it, or correct the address, and {_AGAIN}"
        )
    match getattr(problem.orig, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return f"Make room, and {_AGAIN}"
        case sqlite3.SQLITE_READONLY:
            return f"Let who grades write to it and to the folder it is in, and {_AGAIN}"
    return _GRADEBOOK


def _with_advice(why: str) -> str:
    """What an error of the system's says, of which a text with all its paths is left, with what to do."""
    if (found := re.match(r"\[Errno (\d+)\]", why)) is None:
        return why
    advice = _OF_A_DISK.get(number := int(found[1]))
    return f"{os.strerror(number)}: {advice}" if advice else os.strerror(number)


def in_words(problem: BaseException) -> str:
    """A problem that a person can put right as a sentence; a fault of this program with its traceback, whose
    middle is left out where it is long.
    """
    if isinstance(problem, PROBLEMS):
        return told(problem)
    trace = "".join(traceback.format_exception(problem)).rstrip().splitlines()
    trace = [*trace[:20], "  ...", *trace[-20:]] if len(trace) > 40 else trace
    message = str(problem)[:LONGEST_MESSAGE]
    return "\n".join(
        [f"a fault of the grader, please report it: {type(problem).__name__}: {message}", *trace]
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is none of these; empty where none is near."""
    near = difflib.get_close_matches(name, list(known), cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def student_id_problem(student: str) -> str:
    """Why a folder's name cannot be a student's id, and what to do; empty when it can."""
    why = no_student_id(student)
    return f"{why}; rename the folder under submitted/" if why else ""


def no_student_id(student: str) -> str:
    """Why a name cannot be a student's id; empty when it can."""
    reasons = {
        "it is empty": not student,
        "it begins or ends with a space": student != student.strip(),
        f"it has {len(student)} characters, {LONGEST_ID} are the most": len(student) > LONGEST_ID,
        "not all of its characters can be printed": not student.isprintable(),
        f"none of {' '.join(NOT_IN_AN_ID)} can be in it": not set(student).isdisjoint(NOT_IN_AN_ID),
        "it begins with a dot": student.startswith("."),
    }
    why = ", ".join(reason for reason, holds in reasons.items() if holds)
    return f"no student's id: {why}" if why else ""
