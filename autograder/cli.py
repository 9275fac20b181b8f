"""The `autograder` command. `autograder COMMAND --help` tells what each one does."""

from __future__ import annotations

import json
import secrets
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder.arguments import (
    course_at,
    course_option,
    known_exercises,
    lesson_name,
    number_of_jobs,
    sandbox_here,
    say,
    unsafe_option,
)
from autograder.reporting import export, report
from autograder.selftest.command import selftest, thorough, wrong
from labkit.checks.source.text import visible

if TYPE_CHECKING:
    from autograder.batch.submissions import Run


_INTERRUPTED = {
    "grade": "what is graded is kept, and the same command goes on from there",
    "regrade": "who was graded again by then stays so, and everybody else is as before",
}


class _Commands(click.Group):
    """Says what is wrong with a course's folder, its files or its gradebook without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        from autograder.grade.settings import BadSettings
        from autograder.gradebook.problems import PROBLEMS, told

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # and SIGTERM and SIGHUP: see `__main__`
            if told_last := _INTERRUPTED.get(ctx.invoked_subcommand or ""):
                click.echo(f"Interrupted: {told_last}.", err=True)
            raise
        except BrokenPipeError:
            raise  # whoever read what is printed has enough: no problem of the course's
        except (*PROBLEMS, BadSettings) as problem:
            raise click.ClickException(visible(told(problem))) from None


@click.group(cls=_Commands)
def main() -> None:
    """Grade the workbook's lessons, with nbgrader's gradebook and a sandbox for what students wrote."""
    # nbgrader's own use of its database, told once a submission; nothing to be done about it here.
    warnings.filterwarnings("ignore", message="Object of type .* not in session")


for command in (report, export, selftest, thorough, wrong):
    main.add_command(command)


@main.command()
@click.argument("notebook", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--seed", type=int, help="Draw the cases from this seed; from a fresh one without it.")
@click.option(
    "--lesson", default="", help="The lesson, where the file's name does not begin with its number."
)
@unsafe_option
def verify(notebook: Path, as_json: bool, seed: int | None, lesson: str, unsafe: bool) -> None:
    """Grade one notebook, visible and unseen cases, and print the points. Writes nothing."""
    from autograder.grade.grading import Conditions, grade_notebook
    from autograder.gradebook.report import in_one, told

    name = lesson_name(lesson or _lesson_of(notebook))
    seed = secrets.randbelow(2**31) if seed is None else seed
    show = (lambda graded: None) if as_json else (lambda graded: say(told(graded.report)))
    record = grade_notebook(notebook, "", Conditions(name, seed, sandbox_here(unsafe)), on_graded=show)
    if record.problem:
        say(in_one(record.problem), err=True)
    if as_json:
        click.echo(json.dumps(record.verify_json(), indent=1))
    else:
        for note in record.notes:
            say(f"note: {in_one(note)}")
        for exercise, flag in record.flags:
            say(f"to be looked at: {exercise}: {in_one(str(flag))}")
        click.echo(
            f"{record.points:g} of {record.max_points:g} points (seed {seed}, sandbox: {record.sandbox})"
        )
    sys.exit(2 if record.ungraded else 0)


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Make FOLDER a course: nbgrader's configuration with the steps of this grader."""
    from autograder.gradebook.course import CONFIG_FILE, Course, init_course

    if (folder / CONFIG_FILE).exists():
        Course(folder).try_configuration()
        click.echo(f"{folder / CONFIG_FILE} is there, with this grader's steps")
    else:
        click.echo(f"wrote {init_course(folder)}")


@main.command()
@click.argument("lesson")
@course_option
def add(lesson: str, course: Path) -> None:
    """Put a lesson into the course: source/, release/ (what to hand out) and the gradebook."""
    from autograder.gradebook.alone import alone

    name, known = lesson_name(lesson), course_at(course)
    with alone(known.root):
        known.add_lesson(name)
    click.echo(f"release/{name} is what students get; {name} is in the gradebook")


@main.command()
@click.argument("lesson")
@course_option
@click.option("--jobs", default="auto", help="Submissions at once, in a task with Slurm; or `auto`.")
@click.option("--seed", type=int, help="Draw the cases from this seed, and keep it for the lesson.")
@click.option("--student", "students", multiple=True, help="Only this student; can be given several times.")
@click.option("--force", is_flag=True, help="Grade again what is graded.")
@click.option("--no-feedback", is_flag=True, help="Do not make the feedback pages.")
@click.option(
    "--executor", type=click.Choice(["local", "slurm"]), default="local", help="Where the sandboxes run."
)
@unsafe_option
def grade(
    lesson: str,
    course: Path,
    jobs: str,
    seed: int | None,
    students: tuple[str, ...],
    force: bool,
    no_feedback: bool,
    executor: str,
    unsafe: bool,
) -> None:
    """Grade everything under submitted/ for LESSON: gradebook, feedback pages and
    records/LESSON/grades.csv.
    """
    from autograder.batch.run import grade_course
    from autograder.batch.slurm import JOBS
    from autograder.gradebook.lateness import unused_extensions

    name, known = lesson_name(lesson), course_at(course)
    run = grade_course(
        known,
        name,
        number_of_jobs(jobs, JOBS if executor == "slurm" else None),
        seed,
        unsafe,
        sandbox_here,
        students=students,
        force=force,
        feedback=not no_feedback,
        executor=executor,
    )
    for sentence in unused_extensions(known.root, name, [each.student for each in known.submissions(name)]):
        say(sentence, err=True)
    _tell(run, name)


@main.command()
@click.argument("lesson")
@course_option
@click.option("--student", "students", multiple=True, help="Only this student; can be given several times.")
@click.option(
    "--exercise", "exercises", multiple=True, help="Only this exercise; can be given several times."
)
@unsafe_option
def regrade(
    lesson: str, course: Path, students: tuple[str, ...], exercises: tuple[str, ...], unsafe: bool
) -> None:
    """Grade students or exercises again, and leave everything else as it is."""
    from autograder.batch.run import regrade_course

    name = lesson_name(lesson)
    known_exercises(exercises, name)
    _tell(regrade_course(course_at(course), name, students, exercises, unsafe, sandbox_here), name)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def release(folder: Path) -> None:
    """Write the students' bundle to FOLDER: notebooks and labkit, no solutions, no references, no
    autograder.
    """
    from autograder.gradebook.release import write_bundle

    for path in write_bundle(folder):
        click.echo(path)


@main.command(hidden=True)
@click.argument("lesson")
@course_option
@click.option("--part", type=int, required=True)
@click.option("--parts", type=int, required=True)
@click.option("--jobs", default="auto")
@click.option("--student", "students", multiple=True)
@click.option("--force", is_flag=True)
def work(
    lesson: str, course: Path, part: int, parts: int, jobs: str, students: tuple[str, ...], force: bool
) -> None:
    """One task of a job array: write the records of every PARTS-th submission that has none."""
    from autograder.batch.run import work_on_part

    name, known = lesson_name(lesson), course_at(course)
    work_on_part(known, name, part, parts, number_of_jobs(jobs), sandbox_here, students, force)


def _tell(run: Run, lesson: str) -> None:
    """What a run did, and an exit status that says whether everything was graded."""
    from autograder.gradebook.report import in_one

    if not (run.graded or run.kept or run.failed):
        say(f"nothing was handed in: expected submitted/STUDENT/{lesson}/{lesson}.ipynb", err=True)
    click.echo(
        f"graded {len(run.graded)}, kept {len(run.kept)} graded before, {len(run.failed)} with a problem"
    )
    for student, problem in run.failed.items():
        say(f"  {student}: {in_one(problem)}", err=True)
    for student, problem in run.unreadable.items():
        say(f"  {student}: 0 points, as what was handed in cannot be read: {in_one(problem)}", err=True)
    for student, doubt in run.doubts.items():
        say(f"  {student}: in doubt: {in_one(doubt)}", err=True)
    for student in run.ungraded:
        say(f"  {student}: could not be graded in full; run the command again", err=True)
    for sentence in run.problems:
        say(sentence, err=True)
    sys.exit(1 if run.failed or run.unreadable or run.ungraded or run.problems else 0)


def _lesson_of(notebook: Path) -> str:
    """The lesson that `labkit validate` takes a notebook to be of."""
    from labkit.checks.practice import exercises_of
    from labkit.checks.registry import UnknownExercise

    try:
        return exercises_of(notebook)[0].lesson
    except UnknownExercise as problem:
        raise click.ClickException(visible(f"{problem}; or --lesson NN")) from None
