"""What a run of `autograder grade` shows: how many are done, and how long the class will take. In a terminal
that is a bar; a log, as of a job at night, has lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from autograder.batch.submissions import Event

LINES = 20  # in a log, at most


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

    def has_come_far(self) -> bool:
        """Whether the last one is worth a line in a log, and there are more to come."""
        step = -(-self.total // LINES)
        return self.done % step == 0 and self.done < self.total


def in_words(seconds: float | None, first: str = "submission") -> str:
    """How long, as exactly as it can be known."""
    if seconds is None:
        return f"time left: known after the first {first}"
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s left"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min left"
    return f"about {seconds / 3600:.1f} h left"


class _TimeLeft(ProgressColumn):
    """The pace of a task, in words."""

    def __init__(self, pace: Pace, first: str) -> None:
        super().__init__()
        self._pace, self._first = pace, first

    def render(self, task: Task) -> Text:
        return Text(in_words(self._pace.left(time.monotonic()), self._first))


def progress(told: str, total: int, first: str = "submission") -> tuple[Progress, Callable[[Event], None]]:
    """A bar, to be used as a context manager, and what is to be told of each submission. Both write to
    stderr: what a command prints is for who reads on.

    told: what is done. first: what one of the total is called.
    """
    pace = Pace(total, time.monotonic())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _TimeLeft(pace, first))
    console = Console(stderr=True)
    drawn = console.is_terminal and not console.is_dumb_terminal
    bar = Progress(*columns, console=console, transient=True, disable=not drawn)
    task = bar.add_task(told, total=total)

    def note(event: Event) -> None:
        pace.note(event, time.monotonic())
        bar.advance(task)
        if not drawn and not event.kept and pace.has_come_far():
            left = in_words(pace.left(time.monotonic()))
            print(f"{told}: {pace.done} of {total}, {left}", file=sys.stderr, flush=True)

    return bar, note
