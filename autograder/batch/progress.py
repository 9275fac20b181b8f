"""The bar that a run of `autograder grade` shows: how many are done, and how long the class will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from autograder.batch.submissions import Event


@dataclass
class Pace:
    """How fast submissions are graded, several at once, and what that leaves.

    total: submissions of the run. Those that were graded before take no time, and are not counted.
    """

    total: int
    started: float  # seconds, of a clock that only goes forward; so are all times here
    done: int = 0
    graded: int = 0
    last: float = 0.0

    def note(self, event: Event, now: float) -> None:
        """One more is done."""
        self.done += 1
        if event.kept:
            self.started = now
            return
        self.graded += 1
        self.last = now

    def left(self, now: float) -> float | None:
        """Seconds until all are done; None before the first was graded."""
        if not self.graded:
            return None
        each = (self.last - self.started) / self.graded
        return max(0.0, each * (self.total - self.done) - (now - self.last))


def in_words(seconds: float | None) -> str:
    """How long, as exactly as it can be known."""
    if seconds is None:
        return "time left: known after the first submission"
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s left"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"


class _TimeLeft(ProgressColumn):
    """The pace of a task, in words."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:
        return Text(in_words(self._pace.left(time.monotonic())))


def progress(lesson: str, total: int) -> tuple[Progress, Callable[[Event], None]]:
    """A bar, to be used as a context manager, and what is to be told of each submission."""
    pace = Pace(total, time.monotonic())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _TimeLeft(pace))
    bar = Progress(*columns, transient=True)
    task = bar.add_task(lesson, total=total)

    def note(event: Event) -> None:
        pace.note(event, time.monotonic())
        bar.advance(task)

    return bar, note
