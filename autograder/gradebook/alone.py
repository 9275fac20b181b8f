"""One command at a time grades a course: two would draw other cases, and do everything twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from autograder.gradebook.problems import CourseError

FILE = ".grading.lock"  # who holds it, or did last


@contextlib.contextmanager
def alone(course: Path) -> Iterator[None]:
    """Hold the course until the end of the block. CourseError where another command has it.

    The lock goes with the process that holds it, however that ends. Where the file system has no locks, as
    some that nodes share, nobody is kept out.
    """
    with (course / FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).strip()
            raise CourseError(
                f"{course} is being graded by {holder or 'another command'}: wait until that ends"
            ) from None
        except OSError:
            pass
        _write(file.fileno(), course / FILE)
        yield


def _write(lock: int, path: Path) -> None:
    """Say in the lock who holds it. OSError names the file: on a full disk nothing else does."""
    try:
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None
