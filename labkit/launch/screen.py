"""One place in a notebook's output that is drawn again and again."""

from __future__ import annotations

import sys
import time
from typing import Any

from labkit.launch.render import line_html

_REDRAW_EVERY = 0.2  # seconds


def shell() -> Any | None:
    """The IPython shell of a notebook kernel; None in a terminal, a script or a test."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None else None
    return found if getattr(found, "kernel", None) is not None else None


class Screen:
    """The place. Call it from the main thread."""

    def __init__(self) -> None:
        self._handle: Any | None = None
        self._drawn = ""
        self._when = 0.0

    def draw(self, html: str, text: str, final: bool = False) -> None:
        """Show `html` (`text` where there is no HTML); at most a few times a second, unless final."""
        now = time.monotonic()
        if html == self._drawn or (not final and now - self._when < _REDRAW_EVERY):
            return
        from IPython.display import DisplayHandle  # half a second that scripts need not wait

        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = DisplayHandle()  # known before it is shown: an interrupt may come in between
            self._handle.display(data, raw=True)
        else:
            self._handle.update(data, raw=True)
        self._drawn, self._when = html, now

    @property
    def used(self) -> bool:
        return self._handle is not None


class QueueLine:
    """Where a job stands in the queue: in a notebook one line that changes in place, elsewhere a line is
    printed when something changed."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._began = time.monotonic()
        self._last = ""

    def show(self, standing: str) -> None:
        """The job is like this now."""
        if shell() is not None:
            self._draw(f"{standing}, {time.monotonic() - self._began:.0f} s")
        elif standing != self._last:
            print(f"Slurm: {standing}", file=sys.stderr, flush=True)
        self._last = standing

    def close(self) -> None:
        """The wait is over."""
        if self._screen.used:
            self._draw(f"started after {time.monotonic() - self._began:.0f} s in the queue", final=True)

    def _draw(self, text: str, final: bool = False) -> None:
        self._screen.draw(line_html(f"Slurm: {text}"), f"Slurm: {text}", final)
