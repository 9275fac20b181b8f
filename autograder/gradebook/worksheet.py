"""Moodle's grading worksheet of an assignment, laid beside its archive: who handed in, and when.

The archive itself has neither: its files bear the time at which it was made, and the number in their names is
this assignment's, another one for the same student in the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dateutil import parser

from autograder.gradebook.roster import participant
from autograder.gradebook.tables import table_of

NUMBER, ADDRESS, HANDED_IN = "Identifier", "Email address", "Last modified (submission)"


@dataclass(frozen=True)
class Participant:
    """What a worksheet says of one student. at: with the time zone of this machine."""

    address: str
    at: datetime | None


def read_worksheets(folder: Path) -> dict[str, Participant]:
    """The participants of all worksheets in a folder, by number."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        for row in table_of(path.read_bytes().decode("utf-8-sig", "replace"), str(path)).rows:
            if number := participant(row.get(NUMBER) or ""):
                found[number] = Participant((row.get(ADDRESS) or "").strip(), _time(row.get(HANDED_IN) or ""))
    return found


def _time(text: str) -> datetime | None:
    """Moodle's "Saturday, 21 November 2026, 3:04 PM"; None for "-", nothing, and other languages' days."""
    try:
        return parser.parse(text).astimezone()
    except (ValueError, OverflowError):
        return None
