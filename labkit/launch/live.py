"""Shows what ranks print while they run: in a notebook as tabs drawn anew, elsewhere line by line."""

from __future__ import annotations

import sys
import time
from typing import Any

from labkit.launch.job import Job, Watcher
from labkit.launch.render import clean, output_html, progress_html

_REDRAW_EVERY = 0.2  # seconds


def shell() -> Any | None:
    """The IPython shell of a notebook kernel; None in a terminal, a script or a test."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None else None
    return found if getattr(found, "kernel", None) is not None else None


class Screen:
    """One place in a notebook's output that is drawn again and again. Call it from the main thread."""

    def __init__(self) -> None:
        self._handle: Any | None = None
        self._drawn = ""
        self._when = 0.0

    def draw(self, html: str, text: str, final: bool = False) -> None:
        """Show `html` (`text` where there is no HTML); at most a few times a second, unless final."""
        now = time.monotonic()
        if html == self._drawn or (not final and now - self._when < _REDRAW_EVERY):
            return
        from IPython.display import display

        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        self._drawn, self._when = html, now

    @property
    def used(self) -> bool:
        return self._handle is not None


def watcher() -> Watcher:
    """What `Job.wait` should call meanwhile, here."""
    return _NotebookWatcher() if shell() is not None else _LineWatcher()


class _NotebookWatcher:
    def __init__(self) -> None:
        self._screen = Screen()

    def __call__(self, job: Job) -> None:
        progress = "" if job.done else progress_html(job.progress())
        output = dict(enumerate(job.output))
        html = progress + output_html(output, job.nodes)
        if html or self._screen.used:
            self._screen.draw(html, _plain(output), final=job.done)
        job.shown = self._screen.used


class _LineWatcher:
    """Prints each whole line with its rank in front, as it comes."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._partial: list[str] = []

    def __call__(self, job: Job) -> None:
        if not self._positions:
            self._positions, self._partial = [0] * job.ranks, [""] * job.ranks
        for rank, new in enumerate(job.new_output(self._positions)):
            *lines, self._partial[rank] = (self._partial[rank] + new).split("\n")
            if job.done and self._partial[rank]:
                lines.append(self._partial[rank])
            for line in lines:
                sys.stdout.write(f"[rank {rank}{job.where(rank)}] {line}\n")
        job.shown = True


def _plain(output: dict[int, str]) -> str:
    return "\n".join(
        f"[rank {rank}] {line}"
        for rank, text in output.items()
        for line in clean(text).rstrip().split("\n")
        if line
    )
