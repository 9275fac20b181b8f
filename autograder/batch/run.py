"""What the `grade` and `regrade` commands do with a course: conditions, baseline, grading, the CSV."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from autograder.batch.progress import progress
from autograder.batch.submissions import (
    Event,
    Run,
    grade_lesson,
    graded_in_parallel,
    is_graded,
    merge_if_needed,
    regrade,
)
from autograder.grade.deciding import checks_digest
from autograder.grade.evidence import Baseline
from autograder.grade.grading import Conditions
from autograder.grade.harness import grade_cells
from autograder.grade.records import FOLDER, load_all
from autograder.grade.reference import solved_cells
from autograder.grade.settings import Settings
from autograder.gradebook.alone import alone
from autograder.gradebook.course import Course, Submitted
from autograder.gradebook.listing import as_csv, listing_of
from autograder.gradebook.misplaced import not_gradable
from autograder.gradebook.problems import CourseError, did_you_mean, in_words
from autograder.gradebook.room import check_gradebook, check_records
from autograder.gradebook.versions import check_can_be_graded
from autograder.sandbox.sandbox import Sandbox
from labkit.whole_file import write_whole

CSV = "grades.csv"

FindSandbox = Callable[[bool], Sandbox]


class ReferenceFails(CourseError):
    """The reference solution does not get all points here: nobody is graded before that is understood."""


def grade_course(
    course: Course,
    lesson: str,
    jobs: int,
    seed: int | None,
    unsafe: bool,
    find: FindSandbox,
    students: Sequence[str] = (),
    force: bool = False,
    feedback: bool = True,
    executor: str = "local",
) -> Run:
    """Grade a lesson's submissions, and write records/LESSON/grades.csv. Reference first: see
    `baseline_for`; but not where nobody handed in.
    """
    with _ready(course, lesson, students):
        remember(course, lesson, seed, unsafe)
        if not (chosen := _chosen(course, lesson, students)):
            return _finished(course, lesson, Run(failed=not_gradable(course.root, lesson, students)))
        conditions, left = conditions_for(course, lesson, find), dict[str, str]()
        if executor == "slurm":
            from autograder.batch.slurm import grade_on_slurm

            left = grade_on_slurm(course, conditions, jobs, students, force)
            force = False
        bar, note = progress(lesson, len(chosen))
        with bar:
            run = grade_lesson(course, conditions, jobs, students, force, feedback, note, left)
        return _finished(course, lesson, run)


def regrade_course(
    course: Course,
    lesson: str,
    students: Sequence[str],
    exercises: Sequence[str],
    unsafe: bool,
    find: FindSandbox,
) -> Run:
    """Grade some students' exercises again; all students, or all exercises, where none is named."""
    run = Run()
    with _ready(course, lesson, students):
        run.failed.update(not_gradable(course.root, lesson, students))
        remember(course, lesson, None, unsafe)
        if not (chosen := _chosen(course, lesson, students)):
            return _finished(course, lesson, run)
        conditions = conditions_for(course, lesson, find)
        bar, note = progress(lesson, len(chosen))
        with bar:
            for submitted in chosen:
                try:
                    record = regrade(course, conditions, submitted, exercises)
                    merge_if_needed(course, lesson, submitted, feedback=True)
                    run.graded.append(submitted.student)
                    note(Event(submitted.student, record))
                except Exception as error:
                    run.failed[submitted.student] = in_words(error)
                    note(Event(submitted.student, None, run.failed[submitted.student]))
                    check_records(course.root, lesson)
                    check_gradebook(course.db_url)
        return _finished(course, lesson, run)


def _chosen(course: Course, lesson: str, students: Sequence[str]) -> list[Submitted]:
    """What these students (all) handed in for a lesson."""
    return [s for s in course.submissions(lesson) if not students or s.student in students]


@contextlib.contextmanager
def _ready(course: Course, lesson: str, students: Sequence[str]) -> Iterator[None]:
    """The course for this command alone, with all that can be wrong with it told before anybody is graded."""
    with alone(course.root):
        course.try_configuration()
        if not course.has_lesson(lesson):
            course.add_lesson(lesson)
        check_can_be_graded(course.db_url, lesson)
        check_records(course.root, lesson)
        check_gradebook(course.db_url)
        there = [submitted.student for submitted in course.submissions(lesson)]
        there += not_gradable(course.root, lesson)
        for student in students:
            if student not in there:
                meant = did_you_mean(student, there)
                raise CourseError(f"{student!r} handed in nothing for {lesson}{meant}")
        yield


def work_on_part(
    course: Course,
    lesson: str,
    part: int,
    parts: int,
    jobs: int,
    find: FindSandbox,
    students: Sequence[str] = (),
    force: bool = False,
) -> None:
    """Write the records of this task's share of a lesson's ungraded submissions, or of all with `force`. The
    gradebook and the settings are not touched: other tasks run beside it.
    """
    conditions = conditions_for(course, lesson, find)
    chosen = _chosen(course, lesson, students)
    mine = [s for s in chosen[part::parts] if force or not is_graded(course.root, s, conditions)]

    def note(submitted: Submitted, problem: str) -> None:
        print(f"{submitted.student}: {problem}", flush=True)

    for submitted in graded_in_parallel(course.root, mine, conditions, jobs, note):
        print(submitted.student, flush=True)


def remember(course: Course, lesson: str, seed: int | None, unsafe: bool) -> None:
    """Keep how a lesson is graded. seed: the one kept before, or a fresh one, where it is None."""
    settings = Settings.load(course.root)
    if seed is not None:
        settings.seeds[lesson] = seed
    settings.unsafe = unsafe
    settings.seed(lesson)
    settings.save()


def conditions_for(course: Course, lesson: str, find: FindSandbox) -> Conditions:
    """What is the same for all submissions: sandbox, seed, and what the reference sends."""
    settings = Settings.load(course.root)
    sandbox = find(settings.unsafe)
    conditions = Conditions(lesson, settings.seed(lesson), sandbox)
    return Conditions(lesson, conditions.seed, sandbox, baseline_for(course.root, conditions))


def baseline_for(root: Path, conditions: Conditions) -> Baseline:
    """What the reference sends under these conditions, measured once. ReferenceFails when it loses a
    point.
    """
    digest = checks_digest(conditions.lesson)
    name = f".reference-{conditions.seed}-{digest}-{conditions.sandbox.name}.json"
    path = root / FOLDER / conditions.lesson / name
    with contextlib.suppress(OSError, ValueError):  # not there, or of another version
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    lesson, sandbox, seed = conditions.lesson, conditions.sandbox, conditions.seed
    exercises = conditions.exercises
    bar, note = progress(f"{lesson}: the reference first", len(exercises), "exercise")
    with bar:
        found = grade_cells(
            *(exercises, solved_cells(lesson), sandbox, seed),
            on_graded=lambda graded: note(Event(graded.report.exercise, None)),
        )
    for graded in found:
        if graded.report.points < graded.report.max_points:
            raise ReferenceFails(
                f"the reference solution does not pass here, so nobody is graded:\n{graded.report!r}"
            )
    baseline = Baseline.of([job for graded in found for job in graded.jobs])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(baseline))
    return baseline


def _finished(course: Course, lesson: str, run: Run) -> Run:
    records = load_all(course.root, lesson)
    touched = {*run.graded, *run.kept}
    run.ungraded = [r.student for r in records if r.ungraded and r.student in touched]
    run.unreadable = {r.student: r.problem for r in records if r.problem and r.student in touched}
    try:
        listing = listing_of(course, lesson)
        run.doubts = {who: "; ".join(told) for who, told in listing.doubts.items() if who in touched}
        folder = course.root / FOLDER / lesson
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CSV, as_csv(listing).encode())
    except Exception as problem:  # what was done is told all the same
        run.problems.append(f"{FOLDER}/{lesson}/{CSV} is not up to date: {in_words(problem)}")
    return run
