"""Moodle's grading worksheet of an assignment, laid beside its archive: who handed in, and when.

The archive itself has neither: its files bear the time at which it was made, and the number in their names is
this assignment's, another one for the same student in the next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dateutil import parser

from autograder.gradebook.problems import CourseError
from autograder.gradebook.roster import participant
from autograder.gradebook.tables import table_of

NUMBER, ADDRESS, HANDED_IN = "Identifier", "Email address", "Last modified (submission)"


@dataclass(frozen=True)
class Participant:
    """What a worksheet says of one student. at: with the time zone of this machine. shared: others have the
    address too.
    """

    address: str
    at: datetime | None
    shared: bool = False


def read_worksheets(folder: Path) -> dict[str, Participant]:
    """The participants of all worksheets in a folder, by number. CourseError where one is in another
    language: its students would be known by other ids, and its times be lost. OSError where one cannot be
    read.
    """
    found = {}
    # A name with a dot in front: macOS keeps what else it knows of x.csv in ._x.csv.
    for path in sorted(path for path in folder.glob("[!.]*.[cC][sS][vV]") if path.is_file()):
        table = table_of(path.read_bytes().decode("utf-8-sig", "replace"), str(path))
        if missing := [name for name in (NUMBER, HANDED_IN) if name not in table.columns]:
            raise CourseError(
                f"{path}: expected Moodle's grading worksheet in English, found no column "
                f"{' and no '.join(missing)} among {', '.join(table.columns)[:300]}; download it in English, "
                "or take it out of this folder"
            )
        owners = Counter((row.get(ADDRESS) or "").strip() for row in table.rows)
        for row in table.rows:
            if number := participant(row.get(NUMBER) or ""):
                address = (row.get(ADDRESS) or "").strip()
                shared = bool(address) and owners[address] > 1
                found[number] = Participant(address, _time(row.get(HANDED_IN) or ""), shared)
    return found


def _time(text: str) -> datetime | None:
    """Moodle's "Saturday, 21 November 2026, 3:04 PM"; None for "-", nothing, and other languages' days."""
    try:
        return parser.parse(text).astimezone()
    except (ValueError, OverflowError):
        return None
