"""Who is in the class: `roster.csv` in a course's folder.

It has the columns id, name and email, or is a platform's own file: Moodle's participants or its grading
worksheet, Canvas's exported gradebook. Whatever a student is called by in the course, one of the file's ids
or the address, finds the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from autograder.gradebook.problems import CourseError
from autograder.gradebook.tables import table_of, text_of

ROSTER = "roster.csv"
IDS = (
    *("id", "identifier", "id number", "username", "sis user id", "sis login id"),
    *("email", "email address"),
)
NAMES = ("name", "full name", "student")


@dataclass(frozen=True)
class Person:
    """A student: what they are called, and by which ids they may be known."""

    name: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Roster:
    """A class; an empty one where there is no file."""

    people: tuple[Person, ...] = ()

    def name(self, student: str) -> str:
        """The name of a student; empty where the roster does not have the id."""
        return self._names.get(student, "")

    def called(self, student: str) -> str:
        """A student's name with the id; the id where there is no name."""
        name = self.name(student)
        return f"{name} ({student})" if name else student

    def ids(self, called: str) -> tuple[str, ...]:
        """By which ids those may be known who have this name, or this id; `called` itself among them."""
        wanted = called.casefold()
        found = (p.ids for p in self.people if p.name.casefold() == wanted or called in p.ids)
        return (called, *chain.from_iterable(found))

    def email(self, student: str) -> str:
        """The address of a student; empty where the roster has none."""
        person = next((person for person in self.people if student in person.ids), Person("", ()))
        return next((one for one in person.ids if "@" in one), "")

    def without(self, students: Iterable[str]) -> list[Person]:
        """Those in the class who are none of these students."""
        there = set(students)
        return [person for person in self.people if there.isdisjoint(person.ids)]

    @cached_property
    def _names(self) -> dict[str, str]:
        return {student: person.name for person in self.people for student in person.ids}


def read_roster(course: Path) -> Roster:
    """The class of a course. CourseError says which columns are missing, or what cannot be read."""
    path = course / ROSTER
    if not path.is_file():
        return Roster()
    rows = table_of(text_of(path), str(path)).rows
    people = tuple(dict.fromkeys(person for row in rows if (person := _person(row)) is not None))
    if rows and not people:
        raise CourseError(
            f"{path}: expected the columns id and name (or Moodle's, or Canvas's); found {[*rows[0]]}"
        )
    _check_ids(people, path)
    return Roster(people)


def _check_ids(people: Iterable[Person], path: Path) -> None:
    """CourseError where two have one id: grades would go to either."""
    owners: dict[str, Person] = {}
    for person in people:
        for student in person.ids:
            other = owners.setdefault(student, person)
            if other != person:
                raise CourseError(
                    f"{path}: the id {student!r} belongs to {other.name} and to {person.name}; give each "
                    "an id of their own"
                )


def participant(identifier: str) -> str:
    """The number in Moodle's "Participant 123"; any other id as it is."""
    found = re.fullmatch(r"\D+ (\d+)", identifier)
    return found[1] if found else identifier


def ids_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """What a student of a platform's table may be known by, the platform's own number first."""
    cells = _lower(row)
    return tuple(dict.fromkeys(participant(cells[column]) for column in IDS if cells.get(column)))


def _person(row: Mapping[str, str]) -> Person | None:
    cells, ids = _lower(row), ids_of(row)
    full = next((cells[column] for column in NAMES if cells.get(column)), "")
    last = cells.get("last name") or cells.get("surname", "")
    name = full or f"{cells.get('first name', '')} {last}".strip()
    return Person(name, ids) if ids and name else None


def _lower(row: Mapping[str, object]) -> dict[str, str]:
    return {
        key.strip().lower(): value.strip() for key, value in row.items() if key and isinstance(value, str)
    }
