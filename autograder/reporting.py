"""The commands that tell what was graded: `autograder report` and `autograder export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograder.arguments import course_at, course_option, lesson_name, say
from labkit.checks.source.text import visible

if TYPE_CHECKING:
    from autograder.grade.records import Record
    from autograder.gradebook.course import Course


@click.command()
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
    from autograder.grade.records import load_all, unreadable
    from autograder.gradebook import listing, similar_page
    from autograder.gradebook import ranking as rankings
    from autograder.gradebook import report as reports
    from autograder.gradebook.named import write_named

    name, known = lesson_name(lesson), course_at(course)
    if (similar or ranking) and (explain is not None or csv_file or figure or similar == ranking):
        raise click.UsageError("--similar and --ranking are each shown alone, without other options")
    if similar:
        if not any(known.submissions(name)):
            say(f"nothing was handed in for {name}", err=True)
        say(similar_page.similar(known, name))
        return
    records = load_all(known.root, name)
    if not known.has_lesson(name):
        say(_not_added(name), err=True)
    elif lost := unreadable(known.root, name):
        say(_not_read(lost, name[:2]), err=True)
    elif not records:
        say(f"nobody is graded for {name} yet: `autograder grade {name[:2]}` does it", err=True)
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
        say(f"wrote {path}", err=True)
    if of_one is None:
        say(listing.table(of_class))
    else:
        say(reports.explain(of_one, of_class.doubts.get(of_one.student, ())))


@click.command()
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

    name, known = lesson_name(lesson), course_at(course)
    if column and (form != "canvas" or into is None):
        raise click.UsageError("--column is of Canvas's file: give --to canvas and --into FILE with it")
    if canvas_ids and form != "canvas":
        raise click.UsageError("--canvas-ids is about Canvas: give --to canvas with it, or leave it out")
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
            say(problem, err=True)
        text = filled.text
    elif form == "canvas":
        text = platforms.canvas_csv(scores, name, roster, known.most_points(name), canvas_ids)
    else:
        text = platforms.moodle_csv(scores, name, roster)
    if into is None:
        for sentence in platforms.changed_ids(scores, form.capitalize()):
            say(sentence, err=True)
    if output:
        write_named(output, text.encode())
    else:
        click.echo(text, nl=False)


def _not_added(lesson: str) -> str:
    return f"{lesson} is not in the gradebook: `autograder grade {lesson[:2]}` adds and grades it"


def _not_read(records: Sequence[Path], lesson: str) -> str:
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return (
        f"{records[0]}{more} cannot be read, and whoever is in there is missing here: let who reports read "
        f"it, or `autograder grade {lesson}` makes it again"
    )


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
