"""A class's results as a table and as a CSV: who, what was earned, what lateness cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autograder.grade.records import Record, load_all
from autograder.gradebook.course import Course
from autograder.gradebook.doubts import doubts_about
from autograder.gradebook.report import Score, in_one, lost_points, plain
from autograder.gradebook.requests import Request, requests_of
from autograder.gradebook.roster import Roster, read_roster
from labkit.checks import registry
from labkit.checks.source.notebook import grade_id


@dataclass(frozen=True)
class Listing:
    """A lesson's records, what the gradebook made of them, and the class. doubts: see `doubts_about`."""

    lesson: str
    records: Sequence[Record]
    scores: Sequence[Score] = ()
    roster: Roster = field(default_factory=Roster)
    requests: Sequence[Request] = ()
    doubts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def by_student(self) -> dict[str, Score]:
        """What the gradebook has for each student."""
        return {score.student: score for score in self.scores}


def listing_of(course: Course, lesson: str) -> Listing:
    """All that is known of a lesson in a course."""
    records = load_all(course.root, lesson)
    return Listing(
        lesson,
        records,
        course.scores(lesson),
        read_roster(course.root),
        requests_of(course.root, course.db_url, lesson),
        doubts_about(course, lesson, records),
    )


def table(listing: Listing) -> str:
    """One line a student, one line a property, and what should be graded again."""
    lines = [f"{'student':<32} {'points':>10}  {'score':<18}  exercises"]
    for record in sorted(
        listing.records, key=lambda record: listing.roster.called(record.student).casefold()
    ):
        lines.append(_line(listing, record))
    missing = listing.roster.without(record.student for record in listing.records)
    lines += [f"{f'{person.name} ({person.ids[0]})':<32} {'-':>10}  not graded" for person in missing]
    lines += ["", f"{'exercise':<34} {'property':<24} {'wrong':>9} {'not attempted':>14}"]
    for count in lost_points(listing.records):
        bar = "#" * round(20 * count.share) + "." * round(20 * count.open_share)
        wrong = f"{count.lost} of {count.graded}"
        lines.append(f"{count.exercise:<34} {count.name:<24} {wrong:>9} {count.open:>14}  {bar}")
    asked = [_request(listing, request) for request in listing.requests]
    lines += ["", "asked for another look:", *asked] if asked else []
    lines += ["", "in doubt:", *_doubts(listing)] if listing.doubts else []
    return "\n".join([*lines, *changed_points(listing.records, listing.lesson)])


def changed_points(records: Sequence[Record], lesson: str) -> list[str]:
    """A sentence for each exercise whose points are others now than when somebody was graded."""
    told = []
    for exercise in registry.exercises(lesson):
        before = [r.graded[exercise.id].report.max_points for r in records if exercise.id in r.graded]
        other = [points for points in before if points != exercise.max_points]
        if other:
            then = " or ".join(f"{points:g}" for points in sorted(set(other)))
            told.append(
                f"{exercise.id} has {exercise.max_points} points now, and had {then} when {len(other)} of "
                f"{len(before)} were graded: `autograder grade {lesson[:2]}` grades them again"
            )
    return told


def as_csv(listing: Listing) -> str:
    """One line a student: points of every property, sums, what lateness cost, and what a person should know.

    points: as graded. score_before_penalty, late_penalty and score: the gradebook's, a person's changes
    included. A property without a value has no grade yet: its exercise is named under "ungraded", or itself
    under "held_back", which waits for a person.
    """
    columns = [(e.id, p.name) for e in registry.exercises(listing.lesson) for p in e.properties]
    out = io.StringIO()
    # All in quotes, which is enough for the first cell of a line where a program takes another character than
    # the comma for a separator, as where numbers have commas; for the others see `plain`.
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow([*_HEAD, *(grade_id(*column) for column in columns)])
    for record in listing.records:
        points = (_points(record, exercise, name) for exercise, name in columns)
        writer.writerow([*_about(listing, record), *points])
    return out.getvalue()


_HEAD = (
    *("student", "name", "points", "max_points", "score_before_penalty", "late_penalty", "score"),
    *(
        "not_attempted",
        "ungraded",
        "held_back",
        "problem",
        "in_doubt",
        "flags",
        "sandbox",
        "seed",
        "notebook",
    ),
    "graded_at",
)


def _about(listing: Listing, record: Record) -> Iterator[object]:
    yield plain(record.student)
    yield plain(listing.roster.name(record.student))
    yield f"{record.points:g}"
    yield f"{record.max_points:g}"
    score = listing.by_student.get(record.student)
    yield f"{score.before_penalty:g}" if score else ""
    yield f"{score.late_penalty:g}" if score else ""
    yield score.text if score else ""
    yield " ".join(record.not_attempted)
    yield " ".join(record.ungraded)
    yield " ".join(record.held)
    yield plain(record.problem)
    yield plain("; ".join(listing.doubts.get(record.student, ())))
    yield len(record.flags)
    yield from (record.sandbox, record.seed, plain(record.notebook), record.graded_at)


def _line(listing: Listing, record: Record) -> str:
    verdicts = ", ".join(f"{name.split('.')[1]}: {g.report.verdict}" for name, g in record.graded.items())
    marks = " UNREADABLE" if record.problem else ""
    marks += " IN DOUBT" if record.student in listing.doubts else ""
    marks += " FLAGGED" if record.flags else ""
    marks += " HELD BACK" if record.held else ""
    marks += " UNSAFE" if record.sandbox == "none" else ""
    marks += " NOT IN ROSTER" if listing.roster.people and not listing.roster.name(record.student) else ""
    points = f"{record.points:>4g}/{record.max_points:<5g}"
    score = _score(listing.by_student.get(record.student))
    return f"{listing.roster.called(record.student):<32} {points}  {score:<18}  {verdicts}{marks}"


def _request(listing: Listing, request: Request) -> str:
    about = request.exercise or listing.lesson
    answer = f" (answered: {request.answer})" if request.answer else ""
    return f"  {listing.roster.called(request.student)}, {about}: {request.reason}{answer}"


def _doubts(listing: Listing) -> Iterator[str]:
    for student, sentences in listing.doubts.items():
        for sentence in sentences:
            yield f"  {listing.roster.called(student)}: {in_one(sentence)}"


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    late = f" ({score.before_penalty:g} - {score.late_penalty:g} late)" if score.late_penalty else ""
    return f"{score.text or 'waiting'}{late}"


def _points(record: Record, exercise: str, name: str) -> float | str:
    found = record.graded.get(exercise)
    if found is None or exercise in record.ungraded or name in found.held:
        return ""
    return next((row.points for row in found.report.rows if row.name == name), "")
