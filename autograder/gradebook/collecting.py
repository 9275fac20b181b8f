"""Takes submissions out of nbgrader's exchange, where every student may write.

What is not plainly a student's own is refused and told, and everybody else is collected.
"""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autograder.gradebook.handed_in import AS_WRITTEN, TIME, text_of_time, time_of
from autograder.gradebook.nbgrader_private import NO_TIME, CollectTheFirst
from autograder.gradebook.problems import CourseError, no_student_id
from labkit.checks.source.text import visible

PART = 2**20  # bytes that are copied at once
# `nbgrader submit` takes the time, copies, and is done; the clock may be another machine's.
SUBMITTING = timedelta(minutes=5)


class Refused(Exception):
    """One submission is not collected; the message says why."""


class Collect(CollectTheFirst):
    """nbgrader's `collect`, which copies what links point to, such as an instructor's solved notebook, and
    takes a folder that somebody made in another student's name.

    Both are refused here. Of several submissions the newest of the student's own is taken. Owners are
    compared unless `check_owner` is off, for hubs where all students are one user of the system.

    The time of handing in is that of the folder's name, as UTC. The student could write it, too: where
    something in the folder was changed later, a person is told. Only told, as copying an exchange to another
    file system, or changing its permissions, changes everything in it, and where all students are one user
    each can change what another one left.
    """

    def start(self) -> None:
        """Collect. Names of files and folders are students' texts: a terminal obeys nothing in the log."""
        self.log.addFilter(_made_visible)
        try:
            super().start()
        finally:
            self.log.removeFilter(_made_visible)

    def init_src(self) -> None:
        """Find what is to be collected; what is refused is logged, and what was collected before it stays."""
        super().init_src()
        self.src_records = [record for record in self.src_records if self._told(self._check, record)]

    def in_order(self, newest_first: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What is another's, or not there any more, comes after all of the student's own."""
        return sorted(newest_first, key=lambda one: not self._is_own(self._path(one), one["username"]))

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy one submission, or log an error."""
        self._told(self._copy, src, dest, log)

    def _told(self, do: Callable[..., None], *about: Any) -> bool:
        """Whether this could be done for one submission; where not, the reason is logged."""
        try:
            do(*about)
        except (Refused, OSError, RuntimeError) as problem:
            where = about[0] if isinstance(about[0], str) else self._path(about[0])
            self.log.error("%s", visible(f"{where} was not collected: {problem}"))
            return False
        return True

    def _check(self, record: dict[str, Any]) -> None:
        path, student = self._path(record), record["username"]
        if why := no_student_id(student):
            raise Refused(why)
        if record["timestamp"] == NO_TIME:
            raise Refused(
                "its name has no time of handing in: expected STUDENT+LESSON+TIME+RANDOM with a time such as "
                f"{AS_WRITTEN} (c.Exchange.timezone and timestamp_format as nbgrader has them)"
            )
        if self._another(path, student):
            raise Refused(
                f"it belongs to the user {_owner(path) or 'without a name'}, not to {student}. Where all "
                "students are one user, set c.ExchangeCollect.check_owner = False"
            )
        copy_plain(Path(path), None, self._most_bytes)

    def _copy(self, src: str, dest: str, log: Any) -> None:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(dest), prefix=".collecting-") as kept:
            plain = Path(kept) / os.path.basename(src)
            copy_plain(Path(src), plain, self._most_bytes)
            named: datetime = self._path_to_record(src)["timestamp"]
            if doubt := _doubt(named, plain, last_change(Path(src))):
                self.log.warning("%s: %s", src, doubt)
            _write_time(plain / TIME, named)
            super().do_copy(str(plain), dest, log)

    @property
    def _most_bytes(self) -> int:
        return 1000 * int(self.coursedir.max_dir_size)  # nbgrader's unit

    def _is_own(self, path: str, student: str) -> bool:
        try:
            return not self._another(path, student)
        except OSError:
            return False

    def _another(self, path: str, student: str) -> bool:
        return bool(self.check_owner) and _owner(path) != student

    def _path(self, record: dict[str, Any]) -> str:
        return os.path.join(self.inbound_path, record["filename"])


def _doubt(named: datetime, copied: Path, changed: datetime) -> str:
    """What speaks against the time in a folder's name, and what to do; empty where nothing does.

    changed: when the folder, or anything in it, was changed last. All times as UTC without a zone.
    """
    why = []
    try:
        own = time_of(copied)
    except CourseError:
        why.append(f"its {TIME} holds no time")
    else:
        if own is not None and own != named:
            why.append(f"its {TIME} says {own}")
    if changed - named > SUBMITTING:
        why.append(f"something in it was changed at {changed:%Y-%m-%d %H:%M:%S}")
    if not why:
        return ""
    return (
        f"by its name, which its student can choose, it was handed in at {named} UTC, and "
        f"{' and '.join(why)}. The name's time was taken: correct {TIME} under submitted/ if you know better"
    )


def _write_time(path: Path, at: datetime) -> None:
    """Replace what a student handed in under this name."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_text(text_of_time(at), encoding="utf-8")


def last_change(folder: Path) -> datetime:
    """When a folder, or anything in it, was last changed, as UTC without a zone: by the kernel's account,
    which its owner cannot set.
    """
    found = [os.lstat(folder).st_ctime]
    for _, folders, files, at in os.fwalk(folder, onerror=_fail, follow_symlinks=False):
        found += (os.stat(name, dir_fd=at, follow_symlinks=False).st_ctime for name in [*folders, *files])
    return datetime.fromtimestamp(max(found), UTC).replace(tzinfo=None)


def _made_visible(record: logging.LogRecord) -> bool:
    """A filter of a log that lets everything through, without what a terminal would obey."""
    record.msg, record.args = visible(record.getMessage()), ()
    return True


def copy_plain(src: Path, dest: Path | None, most_bytes: int) -> None:
    """Copy a folder of plain files and folders, following no link, whatever is changed meanwhile; without
    `dest` only look whether it can be done.

    Refused where anything else is in it, or more than so many bytes; OSError where some of it cannot be read.
    """
    top = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        left = most_bytes
        for folder, folders, files, at in os.fwalk(".", onerror=_fail, dir_fd=top, follow_symlinks=False):
            within = ((name, os.path.normpath(os.path.join(folder, name))) for name in [*folders, *files])
            size = sum(_size(name, at, told) for name, told in within)
            if dest is not None and size <= left:
                (dest / folder).mkdir(parents=True, exist_ok=True)
                size = 0
                for name in files:
                    size += _copy_file(name, at, dest / folder / name, left - size)
            left -= size
            if left < 0:
                raise Refused(f"it has more than {most_bytes} bytes, c.CourseDirectory.max_dir_size")
    finally:
        os.close(top)


def _fail(error: OSError) -> None:
    """Of a folder that cannot be opened, which would else be passed over."""
    raise error


def _size(name: str, at: int, told: str) -> int:
    """Of a plain file; 0 of a folder."""
    about = os.stat(name, dir_fd=at, follow_symlinks=False)
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise Refused(f"{told} in it is a link or no plain file; only plain files are collected")
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def _copy_file(name: str, at: int, dest: Path, most: int) -> int:
    """Copy one file as far as it is now, with its time, and at most so many bytes and one; returns how many.
    It may grow while it is read.
    """
    number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    with open(number, "rb") as source, dest.open("xb") as target:
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode):
            raise Refused(f"{name} in it is no plain file any more")
        copied = 0
        while copied <= most and (part := source.read(min(PART, most + 1 - copied))):
            copied += target.write(part)
    os.utime(dest, ns=(about.st_atime_ns, about.st_mtime_ns))
    return copied


def _owner(path: str) -> str:
    """The name of the user whose folder it is; empty where the system has none."""
    try:
        return pwd.getpwuid(os.lstat(path).st_uid).pw_name
    except KeyError:
        return ""
