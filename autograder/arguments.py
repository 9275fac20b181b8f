"""What the commands of `autograder` have in common: what arguments mean, and how a sentence is told.

A wrong argument ends the command with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import NoSandbox, Sandbox
from autograder.sandbox.unconfined import Unconfined
from labkit.checks.source.text import visible

if TYPE_CHECKING:
    from autograder.gradebook.course import Course

unsafe_option = click.option(
    "--unsafe-no-sandbox", "unsafe", is_flag=True, help="Run submissions unconfined. Every grade is marked."
)
course_option = click.option(
    "--course", default=".", type=click.Path(file_okay=False, path_type=Path), help="The course's folder."
)


def lesson_name(name: str) -> str:
    """The full name of a lesson given by its number or name."""
    from autograder.grade.reference import lesson_source

    try:
        return lesson_source(name).name
    except LookupError as problem:
        raise click.ClickException(str(problem)) from None


def known_exercises(exercises: Iterable[str], lesson: str = "") -> None:
    """A usage error unless every one of these is the id of an exercise; of the lesson, where one is given."""
    from labkit.checks.registry import UnknownExercise, exercise

    try:
        for name in exercises:
            if lesson and exercise(name).lesson != lesson[:2]:
                raise click.ClickException(f"{name} is an exercise of another lesson than {lesson}")
            exercise(name)
    except UnknownExercise as problem:
        raise click.ClickException(str(problem)) from None


def number_of_jobs(text: str, automatic: int | None = None) -> int:
    """What `--jobs` asks for: a number, or `auto`. automatic: that number, in place of what fits here."""
    from autograder.batch.submissions import auto_jobs

    if text == "auto":
        return automatic or auto_jobs()
    if not text.isdecimal() or int(text) < 1:
        raise click.ClickException(f"--jobs: expected a number from 1, or auto, found {text!r}")
    return int(text)


def sandbox_here(unsafe: bool) -> Sandbox:
    """This machine's sandbox, or none where that was asked for."""
    if unsafe:
        click.echo("WARNING: student code runs unconfined on this machine.", err=True)
        return Unconfined()
    try:
        return find_sandbox()
    except NoSandbox as problem:
        raise click.ClickException(str(problem)) from None


def course_at(folder: Path) -> Course:
    """The course in this folder."""
    from autograder.gradebook.course import CONFIG_FILE, Course

    if not (folder / CONFIG_FILE).is_file():
        raise click.ClickException(
            f"{folder.resolve()} is not a course: no {CONFIG_FILE}. Where the course is another folder, name "
            f"it: `--course DIRECTORY`. `autograder init {folder}` makes a course of this one"
        )
    return Course(folder)


def say(text: str, err: bool = False) -> None:
    """Print what may hold a student's words: a terminal obeys none of it."""
    click.echo(visible(text), err=err)
