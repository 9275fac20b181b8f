"""Shows what ranks print while they run: in a notebook as tabs drawn anew, elsewhere line by line."""

from __future__ import annotations

import sys

from labkit.launch.job import Job, Watcher
from labkit.launch.render import clean, output_html, progress_html
from labkit.launch.screen import Screen, shell


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
