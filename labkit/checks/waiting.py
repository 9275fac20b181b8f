"""What a check shows while it waits for ranks, so that nobody takes a deadline that is awaited for a hang."""

from __future__ import annotations

import time

from labkit.launch.job import Job, Watcher
from labkit.launch.render import line_html
from labkit.launch.screen import Screen, shell

_SOON = 3.0  # seconds that need no words


class WaitingLine:
    """In a notebook one line that changes in place, once a check has taken a moment; elsewhere nothing."""

    def __init__(self, exercise_id: str) -> None:
        self._exercise = exercise_id
        self._screen = Screen()
        self._began = time.monotonic()

    def watcher(self, ranks: int, timeout: float) -> Watcher:
        """What `Job.wait` should call while it waits for a job that is ended after `timeout` seconds."""
        began = time.monotonic()
        where = f"on {ranks} rank{'' if ranks == 1 else 's'}"

        def watch(job: Job) -> None:
            now = time.monotonic()
            if shell() is not None and now - self._began > _SOON:
                told = f"{where} for {now - began:.0f} s, which end after {timeout:.0f} s at the latest"
                self._draw(f"{self._exercise}: {now - self._began:.0f} s so far; {told}")

        return watch

    def close(self) -> None:
        """The check is over."""
        if self._screen.used:
            self._draw(f"{self._exercise}: {time.monotonic() - self._began:.0f} s", final=True)

    def _draw(self, text: str, final: bool = False) -> None:
        self._screen.draw(line_html(text), text, final)
