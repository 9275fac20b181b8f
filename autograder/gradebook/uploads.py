"""Takes uploads out of a learning platform's archives: whose each is stands in the name the platform gave.

In `downloaded/LESSON/archive` lie zips, or what was in them. The first part of a path there is the
platform's, all that follows is the student's: only the first part says whose it is, and no archive within an
upload is opened.
"""

from __future__ import annotations

import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nbgrader.plugins import ExtractorPlugin
from traitlets import List, Unicode

from autograder.gradebook.lateness import due_date
from autograder.gradebook.problems import CourseError, student_id_problem
from autograder.gradebook.requests import FILE as REQUEST
from autograder.gradebook.worksheet import Participant, read_worksheets
from labkit.checks.source.notebook import LARGEST_NOTEBOOK
from labkit.checks.source.text import visible

# Moodle's folder "Ada Byron_123_assignsubmission_file_", in which the uploaded files are, and that of a text
# typed into the page.
FOLDERS = [r".*_(?P<student>\d+)_assignsubmission_(?:file|onlinetext)_?"]
# One file: Moodle's, where folders were not asked for, and Canvas's "byronada_LATE_123_456_x-1.ipynb".
FILES = [
    r".*?_(?P<student>\d+)_assignsubmission_file_(?P<file>.+)",
    r".*_(?P<student>\d+)_assignsubmission_file_(?P<file>.+)",
    r"[^_]+_(?P<late>LATE_)?(?P<student>\d+)_\d+_(?P<file>.+?)(?:-\d+)?(?P<end>\.[^.]+)?",
]
AT = "at "  # before the time of handing in, in the name of a folder of what was extracted
# How nbgrader's collector reads the paths of what was extracted.
EXTRACTED = (
    rf".*/(?P<student_id>(?!{AT})[^/]+)/(?:{AT}(?P<timestamp>[^/]+)/)?"
    rf"(?P<file_id>[^/]+\.ipynb|{re.escape(REQUEST)})$"
)
ARCHIVES = (".zip", ".gz", ".tar", ".7z", ".rar")
NESTED = "an archive within an upload is not opened; ask for the notebook itself"
NOT_NESTED = "where it is the platform's own archive, give it a name without numbers"
MOST_FILES = 100_000  # in one archive
LONGEST_NAME = 255  # bytes: more, no file system takes
MOST_NAMED = 5  # files that a message names


class UploadProblem(Exception):
    """One upload cannot be collected; the message says which, and why."""


# What reading a file of an archive raises where the archive is broken, or packed as nobody expects.
UNREADABLE = (
    *(UploadProblem, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    *(RuntimeError, OSError, NotImplementedError, ValueError),
)


class Whose(NamedTuple):
    """What a path in an archive says. source: the name up to and with the student's number. name: of the
    notebook, or of the request for another look; empty for other files. late: marked so by the platform.
    """

    student: str
    source: str
    name: str
    late: bool


class File(NamedTuple):
    """A file that is not read yet. path: its name in the archive. size: bytes that it says it has."""

    archive: str
    path: str
    size: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Upload:
    """One notebook, or what a student asks beside it: whose it is, what it is called, where it was found."""

    student: str
    name: str
    source: str  # the archive, and the name in it up to the student's number
    data: bytes
    late: bool = False


class UploadExtractor(ExtractorPlugin):
    """nbgrader's extractor for `zip_collect`: every notebook goes to `extracted/STUDENT/NOTEBOOK`,
    and `regrade.txt` beside it.

    What cannot be collected is logged as an error with its reason, and everybody else is collected.
    """

    folders = List(Unicode(), FOLDERS, help="Patterns of folders' names, with a group `student`.")
    files = List(Unicode(), FILES, help="Patterns of files' names, with groups `student`, `file`, `end`.")
    folders.tag(config=True)
    files.tag(config=True)

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write the notebooks under `archive_path` to `extracted_path`, a folder for each student.

        A Moodle worksheet beside the archives gives students the addresses as ids, and tells when they
        handed in.
        """
        try:
            participants = read_worksheets(Path(archive_path))
        except (CourseError, OSError) as problem:
            self._tell(f"nothing was collected: {problem}")
            raise SystemExit(1) from None
        others: dict[str, list[str]] = {}
        with ExitStack() as archives:
            found = self._by_student(self._files(Path(archive_path), archives), others)
            for student, names in others.items():
                if not any(whose.name != REQUEST for whose, _ in found.get(student, [])):
                    told = ", ".join(names[:MOST_NAMED])
                    self._tell(
                        f"no notebook was collected for {student}: expected a file *.ipynb with a name of at "
                        f"most {LONGEST_NAME} bytes, found {told}"
                    )
            for student, files in found.items():  # each is written before the next is read
                chosen = self._chosen(student, files)
                known = participants.get(student, Participant("", None))
                at = known.at or (self._just_late(student) if any(one.late for one in chosen[:1]) else None)
                if known.shared:
                    self._tell(
                        f"the worksheet gives {known.address} to others too: {student} keeps this number"
                    )
                address = "" if known.shared else known.address
                folder = Path(extracted_path) / _usable(address, student) / (f"{AT}{at}" if at else "")
                for upload in chosen:
                    path = folder / upload.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(upload.data)

    def _by_student(
        self, files: Iterable[File], others: dict[str, list[str]]
    ) -> dict[str, list[tuple[Whose, File]]]:
        """What is to be collected. others: takes, of each student, the names of what is not."""
        found: dict[str, list[tuple[Whose, File]]] = {}
        for file in files:
            if _is_of_macos(file.path):
                continue
            try:
                whose = self.whose(file.path)
            except UploadProblem as problem:
                self._tell_of_file(file, problem)
                continue
            if whose.name:
                found.setdefault(whose.student, []).append((whose, file))
            else:
                others.setdefault(whose.student, []).append(file.path.rpartition("/")[2][:100])
        return found

    def _chosen(self, student: str, files: Sequence[tuple[Whose, File]]) -> list[Upload]:
        """What is collected for a student, read; nothing where it cannot be, with a word about why."""
        try:
            if (size := sum(file.size for _, file in files)) > LARGEST_NOTEBOOK:
                raise UploadProblem(
                    f"expected at most {LARGEST_NOTEBOOK // 2**20} MiB, found {size // 2**20} MiB in "
                    f"{len(files)} files; ask for the notebook alone, without outputs"
                )
            uploads = [upload for whose, file in files for upload in self._read(whose, file)]
            for name in left_out(uploads):
                self.log.warning(
                    "%s", visible(f"{student} uploaded more than one {name}: the outermost counts")
                )
            return one_upload(uploads)
        except UploadProblem as problem:
            self._tell(f"nothing was collected for {student}: {problem}")
            return []

    def _read(self, whose: Whose, file: File) -> Iterator[Upload]:
        """The upload, or none with a word about why."""
        try:
            source = f"{file.archive}: {whose.source}"
            yield Upload(whose.student, whose.name, source, file.read(), whose.late)
        except UNREADABLE as problem:
            self._tell_of_file(file, problem)

    def _just_late(self, student: str) -> datetime | None:
        """A second after the due date, for what is known to be late and not by how much."""
        directory = self.parent.coursedir
        due = due_date(directory.db_url, directory.assignment_id)
        if due is None:
            self._tell(
                f"{student} handed in late, and that costs nothing: {directory.assignment_id} has no due date"
            )
            return None
        self.log.warning("%s handed in late, by how much is not told: taken for a second", student)
        return due.replace(tzinfo=UTC) + timedelta(seconds=1)

    def _files(self, folder: Path, archives: ExitStack) -> Iterator[File]:
        """What there is under a folder and in its archives, which are held open until `archives` ends."""
        for path in sorted(folder.rglob("*"), key=lambda path: (len(path.parts), path)):
            if not path.is_file() or path.is_symlink():
                continue
            if path.suffix.lower() == ".csv" and path.parent == folder:
                continue  # the platform's worksheet
            name = str(path.relative_to(folder))
            if path.suffix.lower() == ".zip" and path.parent == folder and not self._is_of_a_student(name):
                if not _is_of_macos(name):
                    yield from self._zipped(path, archives)
            else:
                yield File(folder.name, name, path.stat().st_size, path.read_bytes)

    def _zipped(self, path: Path, archives: ExitStack) -> Iterator[File]:
        try:
            zipped = archives.enter_context(zipfile.ZipFile(path))
            members = [member for member in zipped.infolist() if not member.is_dir()]
            if len(members) > MOST_FILES:
                raise UploadProblem(f"{len(members)} files; at most {MOST_FILES} are read")
            members.sort(key=lambda member: member.filename.count("/"))  # of one name, the outermost
            for member in members:
                yield File(path.name, member.filename, member.file_size, partial(_read, zipped, member))
        except UNREADABLE as problem:
            self._tell(f"{path.name} cannot be read: {problem}")

    def _is_of_a_student(self, name: str) -> bool:
        """Whether a file's name is what a platform calls one that a student uploaded. What is in such an
        archive has names that the student gave.
        """
        return any(re.fullmatch(pattern, name, re.DOTALL) for pattern in self.files)

    def whose(self, path: str) -> Whose:
        """What a path in an archive says. UploadProblem where it has no student's number, or could have two,
        or is an archive.
        """
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or path.startswith("/"):
            raise UploadProblem("expected a path inside the archive")
        patterns = self.files if len(parts) == 1 else self.folders
        matches = [match for pattern in patterns if (match := re.fullmatch(pattern, parts[0], re.DOTALL))]
        students = {match["student"] for match in matches}
        if len(students) != 1:
            told = f"{len(students)} students' numbers" if students else "no student's number"
            raise UploadProblem(f"{told} in the name {parts[0][:200]!r}")
        if PurePosixPath(path).suffix.lower() in ARCHIVES:
            raise UploadProblem(f"{NESTED}; {NOT_NESTED}" if len(parts) == 1 else NESTED)
        source = parts[0][: matches[0].end("student")]
        groups = matches[0].groupdict()
        return Whose(students.pop(), source, _own_name(parts, groups), bool(groups.get("late")))

    def _tell_of_file(self, file: File, problem: Exception) -> None:
        self._tell(f"{file.archive}: {file.path[:300]} was not collected: {problem}")

    def _tell(self, problem: str) -> None:
        self.log.error("%s", visible(problem))


def one_upload(uploads: Iterable[Upload]) -> list[Upload]:
    """A student's notebooks, one of a name, from one upload.

    The same upload twice counts once. UploadProblem where two different ones have the same student's number.
    """
    by_source: dict[str, dict[str, Upload]] = {}
    for upload in uploads:
        by_source.setdefault(upload.source, {}).setdefault(upload.name, upload)
    if not by_source:
        return []
    first, *others = by_source.values()
    contents = {name: upload.data for name, upload in first.items()}
    if any({name: upload.data for name, upload in other.items()} != contents for other in others):
        raise UploadProblem(f"{len(by_source)} uploads have this number: {', '.join(by_source)}")
    return list(first.values())


def left_out(uploads: Iterable[Upload]) -> list[str]:
    """The names under which one upload has several notebooks that differ."""
    first: dict[tuple[str, str], bytes] = {}
    names = [
        upload.name
        for upload in uploads
        if first.setdefault((upload.source, upload.name), upload.data) != upload.data
    ]
    return list(dict.fromkeys(names))


def _is_of_macos(path: str) -> bool:
    """Whether macOS left this beside what it packed or copied: what else it knows of a file or a folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and (parts[0] in ("__MACOSX", ".DS_Store") or parts[0].startswith("._"))


def _usable(address: str, number: str) -> str:
    """A student's id: the address where there is one that can be an id, else the number."""
    return address if address and student_id_problem(address) == "" else number


def _own_name(parts: tuple[str, ...], groups: dict[str, str | None]) -> str:
    """The name that the student gave a notebook, or the request's; empty where the file is neither."""
    own = parts[-1] if len(parts) > 1 else f"{groups.get('file') or ''}{groups.get('end') or ''}"
    if own.casefold() == REQUEST:
        return REQUEST
    usable = (
        own.endswith(".ipynb")
        and not own.startswith(".")
        and own.isprintable()
        and len(own.encode()) <= LONGEST_NAME
    )
    return own if usable else ""


def _read(zipped: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with zipped.open(member) as file:
        data = file.read(LARGEST_NOTEBOOK + 1)
    if len(data) > LARGEST_NOTEBOOK:
        raise UploadProblem(f"more than {LARGEST_NOTEBOOK // 2**20} MiB")
    return data
