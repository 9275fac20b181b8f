"""The commands that try the checks: `autograder selftest`, `autograder thorough` and `autograder wrong`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from autograder.arguments import known_exercises, lesson_name, number_of_jobs, sandbox_here


@click.command()
@click.option("--lesson", "lessons", multiple=True, help="Only this lesson; can be given several times.")
@click.option(
    "--exercise", "exercises", multiple=True, help="Only this exercise; can be given several times."
)
@click.option("--jobs", default="auto", help="Trials at once, or `auto`.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    help="How many seeds the reference solutions are tried with.",
)
@click.option("--systematic", is_flag=True, help="Try every single edit of the references instead.")
@click.option(
    "--sample", type=click.IntRange(1), help="With --systematic: only so many edits, drawn at random."
)
@click.option("--seed", type=int, help="With --sample: draw the edits from this seed.")
def selftest(
    lessons: tuple[str, ...],
    exercises: tuple[str, ...],
    jobs: str,
    seeds: int,
    systematic: bool,
    sample: int | None,
    seed: int | None,
) -> None:
    """Grade the references, stubs, alternatives and wrong answers of the lessons; print the kill table;
    fail if a wrong answer survives or a right one loses points.
    """
    known_exercises(exercises)
    at_once = number_of_jobs(jobs)
    if systematic and seeds != 1:
        raise click.UsageError("--seeds is for references: leave it out, or --systematic")
    if seed is not None and sample is None:
        raise click.UsageError("--seed draws a sample of edits: give --sample with it")
    if sample is not None and not systematic:
        raise click.UsageError("--sample is of single edits: give --systematic with it")
    if not systematic:
        sys.exit(0 if _trials(lessons, exercises, at_once, seeds) else 1)
    wanted = _wanted(lessons, exercises)
    sys.exit(0 if _systematic(wanted, sample, seed, at_once) else 1)


def _systematic(wanted: Sequence[str], sample: int | None, seed: int | None, jobs: int) -> bool:
    from autograder.selftest.systematic import run_all, run_sample

    if sample is None:
        return run_all(wanted, jobs, click.echo)
    return run_sample(wanted, sample, secrets.randbelow(2**31) if seed is None else seed, jobs, click.echo)


def _trials(lessons: Sequence[str], exercises: Sequence[str], jobs: int, seeds: int) -> bool:
    from autograder.selftest.trials import NoWrongAnswers, Row, kill_table, run_trials, trials

    names = dict.fromkeys(name[:2] for name in _wanted(lessons, exercises))
    try:
        wanted = [t for name in names for t in trials(lesson_name(name), range(1, seeds + 1), exercises)]
    except NoWrongAnswers as problem:
        raise click.ClickException(str(problem)) from None
    with click.progressbar(
        run_trials(wanted, sandbox_here(False), jobs), len(wanted), file=sys.stderr
    ) as rows:
        done = list[Row]()
        try:
            for row in rows:
                done.append(row)
                if not row.ok:
                    click.echo(f"\n{row}", err=True)
        except KeyboardInterrupt:
            click.echo("\n".join(kill_table(done)))
            raise
    click.echo("\n".join(kill_table(done)))
    return all(row.ok for row in done)


def _wanted(lessons: Sequence[str], exercises: Sequence[str]) -> list[str]:
    """The exercises asked for: these, those of these lessons, or all."""
    from autograder.grade.reference import graded_lessons
    from labkit.checks import registry

    named = [lesson_name(name) for name in lessons]
    if exercises:
        found = [name for name in exercises if not named or name[:2] in {lesson[:2] for lesson in named}]
        if not found:  # nothing tried is not all as it must be
            raise click.UsageError(f"none of {', '.join(exercises)} is an exercise of {', '.join(named)}")
        return found
    return [exercise.id for lesson in named or graded_lessons() for exercise in registry.exercises(lesson)]


@click.command()
@click.option("--lesson", "lessons", multiple=True, help="Only this lesson; can be given several times.")
@click.option("--jobs", default="auto", help="Trials at once, or `auto`.")
def thorough(lessons: tuple[str, ...], jobs: str) -> None:
    """Try everything that takes long, under every sandbox there is, and write down what came of it: in
    `benchmarks/results/trials` and `variants` as it comes, and when all lessons have passed in
    `thorough.json`.
    """
    from autograder.grade.reference import graded_lessons
    from autograder.selftest.thorough import run_everything

    sandbox_here(unsafe=False)  # says what to do where there is none
    wanted = [lesson_name(name) for name in lessons] or graded_lessons()
    sys.exit(0 if run_everything(wanted, number_of_jobs(jobs), click.echo) else 1)


@click.group()
def wrong() -> None:
    """Wrong answers that the self-test grades: diffs against the reference solutions."""


@wrong.command()
@click.argument("exercise")
@click.argument("name")
@click.option(
    "--from",
    "edited",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A copy of the lesson's file in solutions/ with the mistake in it.",
)
@click.option("--says", required=True, help="The mistake, in a few words.")
@click.option("--breaks", multiple=True, required=True, help="A property it must cost; can be repeated.")
def write(exercise: str, name: str, edited: Path, says: str, breaks: tuple[str, ...]) -> None:
    """Write the wrong answer NAME to EXERCISE from a copy of the solution that was edited."""
    from autograder.selftest.wrong_answers import WrongAnswerError, write_wrong_answer

    known_exercises([exercise])
    try:
        click.echo(f"wrote {write_wrong_answer(exercise, name, edited, says, breaks)}")
    except (WrongAnswerError, KeyError) as problem:
        raise click.ClickException(str(problem)) from None


@wrong.command(name="refresh")
@click.argument("lessons", nargs=-1)
def refresh_diffs(lessons: tuple[str, ...]) -> None:
    """Move the diffs of LESSONS, or of all, to where their lines stand in the references now."""
    from autograder.grade.reference import graded_lessons
    from autograder.selftest.wrong_answers import refresh

    problems = []
    for lesson in lessons or graded_lessons():
        moved, lost = refresh(lesson_name(lesson))
        problems += lost
        for path in moved:
            click.echo(f"moved {path}")
    if problems:
        raise click.ClickException("\n".join(problems))
