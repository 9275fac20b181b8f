"""Where this course reaches into nbgrader and nbconvert beyond what they offer. Nothing else here may.

Written against nbgrader 0.9; `tests/autograder/test_formgrader.py` tells when another one differs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import nbgrader.api
from nbconvert.exporters import Exporter, HTMLExporter
from nbgrader.converters import GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeCollect

from autograder.gradebook.handed_in import utc_of

FORMGRADER = "nbgrader.server_extensions.formgrader"
LISTS = "nbgrader.apps.api"  # what formgrader lists, and who waits to be graded
OF_THE_EXCHANGE = ("timestamp.txt", "submission_secret.txt")  # read by `release_feedback`

NO_TIME = datetime.min  # of handing in: what a folder's name does not tell


class CollectTheFirst(ExchangeCollect):
    """nbgrader's `collect`, which takes of a student's submissions to a lesson the first in an order that can
    be changed. One whose name has no time comes after all others, with NO_TIME.
    """

    src_records: list[dict[str, Any]]

    def init_src(self) -> None:
        """Find what is to be collected, one for each student.

        nbgrader looks for neighbours of the same name in a list without an order, and so may find more.
        """
        super().init_src()
        of_students: dict[str, list[dict[str, Any]]] = {}
        for record in self.src_records:
            of_students.setdefault(record["username"], []).append(record)
        self.src_records = [self._first(records) for records in of_students.values()]

    def _first(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        due = self.duedate if self.before_duedate else None
        in_time = [record for record in records if due is None or record["timestamp"] <= due]
        return self._sort_by_timestamp(in_time or records)[0]

    def in_order(self, newest_first: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a student has handed in, nbgrader's records of it, with what is to be taken in front."""
        return list(newest_first)

    def _path_to_record(self, path: str) -> dict[str, Any]:
        """nbgrader's record of a folder; its own takes a name such as `10` for a time of today."""
        name = os.path.basename(path)
        parts = name.rsplit("+", 3)
        try:
            at = utc_of(parts[2])
        except (IndexError, ValueError):
            at = NO_TIME
        return {"username": parts[0], "filename": name, "timestamp": at}

    def _sort_by_timestamp(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return self.in_order(super()._sort_by_timestamp(records))


def show_submissions_with(page: type[HTMLExporter]) -> None:
    """Make formgrader, where this process serves it, show submissions as `page` does.

    Formgrader names its exporter in its code, and hands out a submission's other files as they are: here they
    are downloads, and open, if at all, without scripts and apart from the server they came from.
    """
    handlers = sys.modules.get(f"{FORMGRADER}.handlers")
    if handlers is None:
        return  # a command, not a server
    handlers.SubmissionHandler.exporter = property(
        lambda self: page(config=self.settings["nbgrader_formgrader"].config)
    )
    files: Any = handlers.SubmissionFilesHandler
    files.content_security_policy = "sandbox; default-src 'none'"
    files.set_extra_headers = _as_a_download


def read_times_with(read: Callable[[Path], datetime | None]) -> None:
    """Make nbgrader, wherever it asks when a submission (a folder) was handed in, go by `read`: its own
    reader fails on some texts in ways that end a command for everybody.
    """
    reader: Any = CourseDirectory
    reader.get_existing_timestamp = lambda self, folder: read(Path(folder))
    if (lists := sys.modules.get(LISTS)) is not None:
        lists.NbGraderAPI.get_submitted_timestamp = lambda self, assignment, student: read(
            Path(self.coursedir.format_path(self.coursedir.submitted_directory, student, assignment))
        )


def put_only_pages_into_feedback() -> None:
    """Make nbgrader put beside a feedback page what the exchange goes by, and nothing else that was handed
    in: an .html of the student's would be handed out as ours.
    """
    converter: Any = GenerateFeedback
    converter.init_assignment = _copy_what_the_exchange_goes_by


def _copy_what_the_exchange_goes_by(self: Any, assignment: str, student: str) -> None:
    graded, feedback = (Path(of(assignment, student)) for of in (self._format_source, self._format_dest))
    for name in OF_THE_EXCHANGE:
        if (graded / name).is_file():
            feedback.mkdir(parents=True, exist_ok=True)
            (feedback / name).unlink(missing_ok=True)
            shutil.copy(graded / name, feedback / name)


@contextlib.contextmanager
def database_errors_go_to(handler: logging.Handler) -> Iterator[None]:
    """Hand what nbgrader's gradebook logs, which goes by tornado's log, to `handler` alone: it is SQL and a
    traceback for each error, which is raised too.
    """
    log, before = nbgrader.api.app_log, nbgrader.api.app_log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(handler)


def take_only(converter: Any, found: dict[str, list[str]]) -> None:
    """Make a converter take these notebooks (folder -> files), whatever patterns their names would match."""
    converter.init_notebooks = lambda: setattr(converter, "assignments", found)


def reads_the_students_file(exporter: Exporter) -> bool:
    """Whether autograding is in its first pass, over what was handed in, and not in that over the result."""
    return bool(getattr(exporter.parent, "_sanitizing", True))


def resources_of(exporter: Exporter, resources: Any) -> Any:
    """What nbconvert hands from step to step, filled in as it does itself."""
    return exporter._init_resources(resources)


def _as_a_download(self: Any, path: str) -> None:
    self.set_header("Content-Disposition", "attachment")
    self.set_header("X-Content-Type-Options", "nosniff")
