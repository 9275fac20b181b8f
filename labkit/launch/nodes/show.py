"""Where a job stands in the queue, in one line that is drawn again and again."""

from __future__ import annotations

import html
import sys
import time

from labkit.launch.live import Screen, shell
from labkit.slurm.commands import JobState


class QueueLine:
    """The line: in a notebook it changes in place, elsewhere a line is printed when something changed."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._began = time.monotonic()
        self._last = ""

    def show(self, state: JobState) -> None:
        """The job is like this now."""
        text = str(state)
        if shell() is not None:
            self._draw(f"{text}, {time.monotonic() - self._began:.0f} s")
        elif text != self._last:
            print(f"Slurm: {text}", file=sys.stderr, flush=True)
        self._last = text

    def close(self) -> None:
        """The wait is over."""
        if self._screen.used:
            self._draw(f"started after {time.monotonic() - self._began:.0f} s in the queue", final=True)

    def _draw(self, text: str, final: bool = False) -> None:
        style = "font-size:12px;color:var(--jp-ui-font-color2,#666);margin:2px 0"
        self._screen.draw(f'<div style="{style}">Slurm: {html.escape(text)}</div>', f"Slurm: {text}", final)
