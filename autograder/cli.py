"""The `autograder` command. `autograder COMMAND --help` tells what each one does."""

from __future__ import annotations

import json
import secrets
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autograder.arguments import known_exercises, lesson_name, number_of_jobs, sandbox_here
from autograder.selftest.command import selftest, thorough, wrong
from labkit.checks.source.text import visible

if TYPE_CHECKING:
    from autograder.batch.submissions import Run
    from autograder.grade.records import Record
    from autograder.gradebook.course import Course

unsafe_option = click.option(
    "--unsafe-no-sandbox", "unsafe", is_flag=True, help="Run submissions unconfined. Every grade is marked."
)
course_option = click.option(
    "--course", default=".", type=click.Path(file_okay=False, path_type=Path), help="The course's folder."
)


class _Commands(click.Group):
    """Says what is wrong with a course's folder, its files or its gradebook without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        from autograder.grade.settings import BadSettings
        from autograder.gradebook.problems import PROBLEMS, told

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # and SIGTERM and SIGHUP: see `__main__`
            if ctx.invoked_subcommand == "grade":
                told_last = "Interrupted: what is graded is kept, and the same command goes on from there."
                click.echo(told_last, err=True)
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


for command in (selftest, thorough, wrong):
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
    show = (lambda graded: None) if as_json else (lambda graded: _say(told(graded.report)))
    record = grade_notebook(notebook, "", Conditions(name, seed, sandbox_here(unsafe)), on_graded=show)
    if record.problem:
        _say(in_one(record.problem), err=True)
    if as_json:
        click.echo(json.dumps(record.verify_json(), indent=1))
    else:
        for note in record.notes:
            _say(f"note: {in_one(note)}")
        for exercise, flag in record.flags:
            _say(f"to be looked at: {exercise}: {in_one(str(flag))}")
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

    name, known = lesson_name(lesson), _course(course)
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

    name, known = lesson_name(lesson), _course(course)
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
    if not (run.graded or run.kept or run.failed):
        _say(f"nothing was handed in: expected submitted/STUDENT/{name}/{name}.ipynb", err=True)
    for sentence in unused_extensions(known.root, name, [each.student for each in known.submissions(name)]):
        _say(sentence, err=True)
    _tell(run)


@main.command()
@click.argument("lesson")
@course_option
@click.option("--explain", metavar="STUDENT", help="Everything about one submission, by id or name.")
@click.option(
    "--csv",
    "csv_file",
    is_flag=False,
    flag_value="LESSON.csv",
    help="Write the table as CSV; to LESSON.csv where no name is given.",
)
@click.option("--figure", type=click.Path(path_type=Path), help="Draw where points are lost (png, pdf, svg).")
@click.option("--similar", is_flag=True, help="Only pairs whose code is much alike. It takes no points.")
@click.option(
    "--ranking", is_flag=True, help="Only the table of measured scores, by the names students chose."
)
def report(
    lesson: str,
    course: Path,
    explain: str | None,
    csv_file: str | None,
    figure: Path | None,
    similar: bool,
    ranking: bool,
) -> None:
    """What was graded: one line a student, and where points are lost. Names come from roster.csv."""
    from autograder.grade.records import load_all
    from autograder.gradebook import listing, similar_page
    from autograder.gradebook import ranking as rankings
    from autograder.gradebook import report as reports
    from autograder.gradebook.named import write_named

    name, known = lesson_name(lesson), _course(course)
    if (similar or ranking) and (explain is not None or csv_file or figure or similar == ranking):
        raise click.UsageError("--similar and --ranking are each shown alone, without other options")
    if similar:
        if not any(known.submissions(name)):
            _say(f"nothing was handed in for {name}", err=True)
        _say(similar_page.similar(known, name))
        return
    records = load_all(known.root, name)
    if not known.has_lesson(name):
        _say(_not_added(name), err=True)
    elif not records:
        _say(f"nobody is graded for {name} yet: `autograder grade {name[:2]}` does it", err=True)
    if ranking:
        click.echo(rankings.ranking(records, name))
        return
    of_one = _record_of(explain, known, name) if explain is not None else None
    if figure:
        if figure.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise click.ClickException(f"--figure: expected a name with .png, .pdf or .svg, found {figure}")
        reports.draw_lost_points(records, figure)
    of_class = listing.listing_of(known, name)
    if csv_file:
        path = Path(f"{name}.csv" if csv_file == "LESSON.csv" else csv_file)
        write_named(path, listing.as_csv(of_class).encode())
        _say(f"wrote {path}", err=True)
    if of_one is None:
        _say(listing.table(of_class))
    else:
        _say(reports.explain(of_one, of_class.doubts.get(of_one.student, ())))


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
    _tell(regrade_course(_course(course), name, students, exercises, unsafe, sandbox_here))


@main.command()
@click.argument("lesson")
@course_option
@click.option("--to", "form", type=click.Choice(["moodle", "canvas"]), required=True)
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The platform's own file, to be filled in: Moodle's grading worksheet, Canvas's exported gradebook.",
)
@click.option("--column", default="", help="The assignment's column in Canvas's file.")
@click.option("--canvas-ids", is_flag=True, help="Students' ids are Canvas's own numbers, as in its zips.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, instead of to the screen.")
def export(
    lesson: str,
    course: Path,
    form: str,
    into: Path | None,
    column: str,
    canvas_ids: bool,
    output: Path | None,
) -> None:
    """The gradebook's sums for a learning platform (nbgrader export gives the rest)."""
    from autograder.gradebook import platforms
    from autograder.gradebook.named import write_named
    from autograder.gradebook.roster import read_roster
    from autograder.gradebook.tables import text_of

    name, known = lesson_name(lesson), _course(course)
    if not known.has_lesson(name):
        raise click.ClickException(_not_added(name))
    scores, roster = known.scores(name), read_roster(known.root)
    if into is not None:
        given = text_of(into)
        canvas = form == "canvas"
        filled = (
            platforms.fill_canvas(given, scores, name, column)
            if canvas
            else platforms.fill_moodle(given, scores)
        )
        for problem in [*filled.problems, *(f"not in {into.name}: {student}" for student in filled.unknown)]:
            _say(problem, err=True)
        text = filled.text
    elif form == "canvas":
        text = platforms.canvas_csv(scores, name, roster, known.most_points(name), canvas_ids)
    else:
        text = platforms.moodle_csv(scores, name, roster)
    if into is None:
        for sentence in platforms.changed_ids(scores, form.capitalize()):
            _say(sentence, err=True)
    if output:
        write_named(output, text.encode())
    else:
        click.echo(text, nl=False)


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

    name, known = lesson_name(lesson), _course(course)
    work_on_part(known, name, part, parts, number_of_jobs(jobs), sandbox_here, students, force)


def _say(text: str, err: bool = False) -> None:
    """Print what may hold a student's words: a terminal obeys none of it."""
    click.echo(visible(text), err=err)


def _tell(run: Run) -> None:
    """What a run did, and an exit status that says whether everything was graded."""
    from autograder.gradebook.report import in_one

    click.echo(
        f"graded {len(run.graded)}, kept {len(run.kept)} graded before, {len(run.failed)} with a problem"
    )
    for student, problem in run.failed.items():
        _say(f"  {student}: {in_one(problem)}", err=True)
    for student, problem in run.unreadable.items():
        _say(f"  {student}: 0 points, as what was handed in cannot be read: {in_one(problem)}", err=True)
    for student, doubt in run.doubts.items():
        _say(f"  {student}: in doubt: {in_one(doubt)}", err=True)
    for student in run.ungraded:
        _say(f"  {student}: could not be graded in full; run the command again", err=True)
    for sentence in run.problems:
        _say(sentence, err=True)
    sys.exit(1 if run.failed or run.unreadable or run.ungraded or run.problems else 0)


def _course(folder: Path) -> Course:
    from autograder.gradebook.course import CONFIG_FILE, Course

    if not (folder / CONFIG_FILE).is_file():
        raise click.ClickException(
            f"{folder.resolve()} is not a course: no {CONFIG_FILE}. Where the course is another folder, name "
            f"it: `--course DIRECTORY`. `autograder init {folder}` makes a course of this one"
        )
    return Course(folder)


def _not_added(lesson: str) -> str:
    return f"{lesson} is not in the gradebook: `autograder grade {lesson[:2]}` adds and grades it"


def _record_of(called: str, course: Course, lesson: str) -> Record:
    """The record of a student given by id or name."""
    from autograder.grade.records import load, load_all
    from autograder.gradebook.problems import did_you_mean
    from autograder.gradebook.roster import read_roster

    roster = read_roster(course.root)
    found = (load(course.root, lesson, one) for one in roster.ids(called))
    record = next((record for record in found if record is not None), None)
    if record is None:
        students = [each.student for each in load_all(course.root, lesson)]
        meant = did_you_mean(called, [*students, *filter(None, map(roster.name, students))])
        raise click.ClickException(visible(f"no record of {called!r} for {lesson}{meant}"))
    return record


def _lesson_of(notebook: Path) -> str:
    """The lesson that `labkit validate` takes a notebook to be of."""
    from labkit.checks.practice import exercises_of
    from labkit.checks.registry import UnknownExercise

    try:
        return exercises_of(notebook)[0].lesson
    except UnknownExercise as problem:
        raise click.ClickException(visible(f"{problem}; or --lesson NN")) from None
