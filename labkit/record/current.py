"""The recorder of this process, if it is a rank: what `labkit.span` writes to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from labkit.record.recorder import Recorder

_Item = TypeVar("_Item")

# A process is at most one rank, for its whole life, and threads of the rank (autograd's) record too:
# so this belongs to the process, and only the rank's worker sets it.
_of_this_process: list[Recorder] = []


def use_recorder(recorder: Recorder) -> None:
    """Make `recorder` the one that this process writes to."""
    _of_this_process[:] = [recorder]


def current_recorder() -> Recorder | None:
    """The recorder of this rank; None outside ranks and in jobs that do not record."""
    return _of_this_process[0] if _of_this_process else None


@contextmanager
def span(name: str, kind: str = "compute") -> Iterator[None]:
    """Name a stretch of this rank's time, for the job's timeline.

    kind: "forward", "backward", "optimizer", "compute", "communication" or "idle": the colour it is drawn in;
        "step" for what goes around others.
    Outside a rank it does nothing, so code that has spans also runs alone.
    """
    recorder = current_recorder()
    if recorder is not None:
        recorder.meter.read()
    start = time.monotonic()
    try:
        yield
    finally:
        if recorder is not None:
            recorder.add_span(name, kind, start, time.monotonic())
            recorder.meter.read()


def slow_link(ms: float) -> None:
    """Stand for a slow connection: let `ms` milliseconds pass, shown as communication in the timeline."""
    with span(f"slow link, {ms:g} ms", kind="communication"):
        time.sleep(ms / 1000)


def progress(items: Iterable[_Item] | int, label: str = "") -> Iterator[_Item] | Iterator[int]:
    """Go through `items` (or `range(items)`), and let the notebook draw how far this rank is.

    One bar is drawn for the whole job, at the rank that is furthest behind. Outside a rank nothing is drawn.
    """
    if isinstance(items, int):
        return _counted(range(items), label)
    return _counted(items, label)


def _counted(items: Iterable[_Item], label: str) -> Iterator[_Item]:
    recorder = current_recorder()
    total = len(items) if isinstance(items, Sized) else 0
    for done, item in enumerate(items):
        if recorder is not None:
            recorder.page.set_progress(done, total, label)
        yield item
    if recorder is not None:
        recorder.page.set_progress(total, total, label)
