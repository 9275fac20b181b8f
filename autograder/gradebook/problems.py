"""What can be wrong with a course's folder, and with the name of a student's."""

from __future__ import annotations

import errno
import traceback

from sqlalchemy.exc import DBAPIError

from autograder.sandbox.sandbox import CouldNotEnd

LONGEST_ID = 128  # characters
LONGEST_MESSAGE = 500  # characters of what an error says
NOT_IN_AN_ID = "/\\{}*?[]"


class CourseError(RuntimeError):
    """Something about the course's folder has to be put right first; the message says what."""


# What a person can put right, and is told in a sentence. Whatever else is raised is a fault of this program.
PROBLEMS = (CourseError, CouldNotEnd, OSError, DBAPIError)


_GRADEBOOK = (
    "Where another program writes to it, as formgrader does, run the command again when that is done. Where "
    "it is broken, put a copy back; or move it away, and `autograder grade` writes it again from records/, "
    "all but due dates, and the points and comments that a person gave"
)


def told(problem: Exception) -> str:
    """What is to be said of one of PROBLEMS, and what to do."""
    match problem:
        case DBAPIError():
            return f"the gradebook cannot be used: {problem.orig}. {_GRADEBOOK}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return f"{problem}: make room, and run the command again; what was graded is kept"
    return str(problem)


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
