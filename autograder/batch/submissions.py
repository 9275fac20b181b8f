"""Grades every submission of a lesson: sandboxes in parallel, one process that writes the gradebook.

A submission's record is written when its grading ends, and merged into the gradebook after that; each is
done again only if it was not finished. So a run that is killed at any instant goes on where it was when it
is started again.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from autograder.grade.deciding import checks_digest
from autograder.grade.grading import Conditions, digest_of, grade_notebook
from autograder.grade.records import Record, load, path_of, save
from autograder.gradebook.circumstances import circumstances
from autograder.gradebook.course import Course, Submitted, put_in_place
from autograder.gradebook.handed_in import time_of
from autograder.gradebook.links import linked, remove_links
from autograder.gradebook.misplaced import not_gradable
from autograder.gradebook.problems import CannotGoOn, CourseError, in_words
from autograder.gradebook.room import check_gradebook, check_records
from labkit import hosts
from labkit.checks.source.text import visible

MEMORY_OF_A_JOB = 2**30  # bytes: what four ranks use; the sandbox's limit is for those that use more

WITH_FEEDBACK = " with feedback"  # at the end of a marker of what was merged


@dataclass
class Run:
    """What one call of `grade_lesson` did. failed: student -> why nothing could be written.

    ungraded: students with an exercise that the harness, not they, failed. unreadable: student -> why what
    they handed in is no notebook: it has no points, and the gradebook says so. doubts: student -> where their
    work may be instead. problems: what concerns no single student.
    """

    graded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    ungraded: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """One submission is done: for a progress bar."""

    student: str
    record: Record | None
    problem: str = ""
    kept: bool = False  # it was graded before


def grade_lesson(
    course: Course,
    conditions: Conditions,
    jobs: int,
    students: Sequence[str] = (),
    force: bool = False,
    feedback: bool = True,
    on_event: Callable[[Event], None] = lambda event: None,
    left: Mapping[str, str] = MappingProxyType({}),
) -> Run:
    """Grade what is under submitted/ and not yet graded, or all of it with `force`; then merge.

    students: only these. jobs: how many submissions at once. left: who could not be graded elsewhere, and is
    not graded here -> why. CannotGoOn where the course's own disk or gradebook takes nothing more.
    """
    run = Run()
    run.failed.update(not_gradable(course.root, conditions.lesson, students))
    todo: list[Submitted] = []
    done: list[Submitted] = []

    def told_failed(submitted: Submitted, problem: str) -> None:
        run.failed[submitted.student] = problem
        on_event(Event(submitted.student, None, problem))

    for submitted in course.submissions(conditions.lesson):
        if students and submitted.student not in students:
            continue
        if submitted.student in left:
            told_failed(submitted, left[submitted.student])
            continue
        (todo if force or not is_graded(course.root, submitted, conditions) else done).append(submitted)

    def told_kept(event: Event) -> None:
        on_event(replace(event, kept=True))

    for submitted in done:
        _finish(course, conditions, submitted, feedback, run.kept, run.failed, told_kept)

    # Closed here and now where it is broken off: what has begun ends while this process holds the course.
    with contextlib.closing(graded_in_parallel(course.root, todo, conditions, jobs, told_failed)) as graded:
        for submitted in graded:
            _finish(course, conditions, submitted, feedback, run.graded, run.failed, on_event)
    return run


def graded_in_parallel(
    root: Path,
    todo: Sequence[Submitted],
    conditions: Conditions,
    jobs: int,
    on_failure: Callable[[Submitted, str], None],
) -> Generator[Submitted, None, None]:
    """Grade each submission and write its record; yields them as they are done. What cannot be graded is told
    and passed over; CannotGoOn where that is because no record can be written.
    """
    waiting = list(reversed(todo))
    running: dict[Future[None], Submitted] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="grading") as pool, _told_when_broken_off(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                submitted = waiting.pop()
                running[pool.submit(grade_one, root, submitted, conditions)] = submitted
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                submitted = running.pop(future)
                if (error := future.exception()) is not None:
                    on_failure(submitted, in_words(error))
                    check_records(root, conditions.lesson)
                else:
                    yield submitted


@contextlib.contextmanager
def _told_when_broken_off(running: Mapping[Future[None], Submitted]) -> Iterator[None]:
    """Where the block is interrupted, who is waited for: what has begun is graded to its end."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit, CannotGoOn):
        names = ", ".join(
            visible(submitted.student) for future, submitted in running.items() if not future.done()
        )
        if names:
            told = f"Broken off. {names}: graded to the end first, which can take some minutes."
            print(told, file=sys.stderr, flush=True)
        raise


def grade_one(root: Path, submitted: Submitted, conditions: Conditions) -> None:
    """Grade one submission and write its record."""
    save(root, _graded(submitted, conditions))


def regrade(course: Course, conditions: Conditions, submitted: Submitted, only: Sequence[str]) -> Record:
    """Grade some exercises of one submission again, leaving the others of its record as they are.

    All of them where there is no record of these bytes under these conditions.
    """
    old = load(course.root, conditions.lesson, submitted.student)
    seed, sandbox, checks = conditions.seed, conditions.sandbox.name, checks_digest(conditions.lesson)
    if old is None or not old.made_of(digest_of(submitted.notebook), seed, sandbox, checks):
        new = _graded(submitted, conditions)
    else:
        new = _graded(submitted, conditions, only)
        if new.sha256 == old.sha256:
            new.graded = {**old.graded, **new.graded}
    save(course.root, new)
    return new


def _graded(submitted: Submitted, conditions: Conditions, only: Sequence[str] = ()) -> Record:
    """The record of a submission as it is now. The copy that an earlier run made of it, under the name that
    nbgrader looks for, goes first: this run may end before it makes another.
    """
    copy = submitted.notebook.with_name(f"{conditions.lesson}.ipynb")
    if copy != submitted.notebook:
        copy.unlink(missing_ok=True)
    record = grade_notebook(submitted.notebook, submitted.student, conditions, only)
    if copy != submitted.notebook:
        record.notes.append(f"graded: {visible(submitted.notebook.name)}, as there was no {copy.name}")
    if submitted.others:
        record.notes.append(f"not graded: {', '.join(submitted.others)}")
    return record


def is_graded(root: Path, submitted: Submitted, conditions: Conditions) -> bool:
    """Whether there is a record of these bytes under these conditions."""
    record = load(root, conditions.lesson, submitted.student)
    digest, checks = digest_of(submitted.notebook), checks_digest(conditions.lesson)
    return record is not None and record.fits(digest, conditions.seed, conditions.sandbox.name, checks)


def _finish(
    course: Course,
    conditions: Conditions,
    submitted: Submitted,
    feedback: bool,
    done: list[str],
    failed: dict[str, str],
    on_event: Callable[[Event], None],
) -> None:
    """Bring the gradebook and the feedback page up to a record, unless they are already. Whatever stands in
    the way is this student's problem, and the others are graded; unless it is the course that cannot be
    written to, which is CannotGoOn.
    """
    record = load(course.root, conditions.lesson, submitted.student)
    try:
        merge_if_needed(course, conditions.lesson, submitted, feedback)
        done.append(submitted.student)
        on_event(Event(submitted.student, record))
    except Exception as error:
        failed[submitted.student] = in_words(error)
        on_event(Event(submitted.student, record, failed[submitted.student]))
        check_records(course.root, conditions.lesson)
        check_gradebook(course.db_url)


def merge_if_needed(course: Course, lesson: str, submitted: Submitted, feedback: bool) -> None:
    """Write the record's grade into the gradebook and make the feedback page; a marker beside it says it
    was done.
    """
    if why := linked(submitted.notebook.parent):
        raise CourseError(why)
    path = path_of(course.root, lesson, submitted.student)
    marker = path.with_suffix(".merged")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    digest += f" {circumstances(course.root, course.db_url, lesson, submitted.student)}"
    digest += WITH_FEEDBACK if feedback else ""
    record = load(course.root, lesson, submitted.student)
    done = marker.is_file() and marker.read_bytes().startswith(digest.encode())
    if done and record is not None and course.holds(record, feedback):
        _renew_penalty(course, lesson, submitted.student, feedback, marker)
        return
    remove_links(submitted.notebook.parent)
    time_of(submitted.notebook.parent)  # or a CourseError
    put_in_place(submitted, lesson)
    course.merge(lesson, submitted.student)
    if feedback:
        course.feedback(lesson, submitted.student)
    marker.write_text(digest)


def _renew_penalty(course: Course, lesson: str, student: str, feedback: bool, marker: Path) -> None:
    """Bring what lateness costs up to points that a person gave after the merge. A merge would do it too, and
    ask a person to look at those points again.
    """
    if course.has_penalty(lesson, student):
        return
    digest = marker.read_bytes()
    marker.unlink()  # where this is cut off, a merge does it
    course.renew_penalty(lesson, student)
    if feedback:
        course.feedback(lesson, student)
    marker.write_bytes(digest if feedback else digest.removesuffix(WITH_FEEDBACK.encode()))


def auto_jobs() -> int:
    """Submissions at once: as many as there are cores and memory for. The ranks of a job wait for one another
    more than they compute, so that one job does not keep its share of the cores busy.
    """
    return max(1, min(hosts.cores(), hosts.free_memory() // MEMORY_OF_A_JOB))
