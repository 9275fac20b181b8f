"""Files that whoever calls a command names, and may have had for long: worksheets, tables."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.whole_file import write_whole


def write_named(path: Path, data: bytes) -> None:
    """Write a file under a name that somebody gave. One that is there is whole at any time, the old or the
    new, and others may read it as they could before; a link stays one. What is no file, such as a pipe or
    /dev/stdout, is written to as it is. OSError names the file.
    """
    try:
        target = path.resolve()
        if _is_no_file(path) or _is_no_file(target):
            with path.open("wb") as file:
                file.write(data)
        else:
            with _permissions_of(target):
                write_whole(target, data)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from None


def _is_no_file(path: Path) -> bool:
    """A device or a pipe. What /dev/stdout stands for may be a file, that another program has open."""
    return path.parts[1:2] in (("dev",), ("proc",)) or (path.exists() and not path.is_file())


@contextmanager
def _permissions_of(path: Path) -> Iterator[None]:
    """Let what is written have the permissions that the file has, if there is one."""
    if not path.exists():
        yield
        return
    before = os.umask(0o777 & ~stat.S_IMODE(path.stat().st_mode))
    try:
        yield
    finally:
        os.umask(before)
