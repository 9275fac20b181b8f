"""What the arguments of the `autograder` command mean; a wrong one ends the command with a sentence."""

from __future__ import annotations

from collections.abc import Iterable

import click

from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import NoSandbox, Sandbox
from autograder.sandbox.unconfined import Unconfined


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
