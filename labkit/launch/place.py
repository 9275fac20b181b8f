"""Where ranks run, as `Job` and `Session` see it: `here.Here` is this machine, `nodes.place.Nodes` others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import Request, Wanted
from labkit.record.state import State

Prepare = Callable[[Path], None]


class Listener(Protocol):
    """Where the ranks of a session report to the notebook."""

    def accept(self, seconds: float) -> Connection | None:
        """The connection of the next rank; None when none came within that time."""

    def close(self) -> None:
        """Accept nobody any more."""


class Run(Protocol):
    """The processes of one job."""

    request: Request
    directory: Path

    @property
    def nodes(self) -> list[str]:
        """The node of each rank, "" as long as it is not known; empty for a job on this machine."""

    def ended(self, timeout: float) -> Diagnosis | None:
        """How the job ended, waiting `timeout` seconds at most; None while it runs. It ends a job that does
        not keep its time, or does not stop when it was told to."""

    def stop(self, reason: str) -> None:
        """Have the job ended, and `ended` say so soon. reason: as `failure.diagnose` takes it."""

    def hold(self) -> Diagnosis | None:
        """Leave the ranks of a job in which one failed as they are, until `stop` or until the notebook hangs
        up; why it failed. None where that cannot be done."""

    def queued(self) -> bool:
        """Whether the job waits for its turn."""

    def standing(self) -> str:
        """How the job stands: 'running', 'waiting, place 2 in the queue (Resources)'."""

    def set_deadline(self, seconds: float) -> None:
        """End the job if it still works in `seconds` seconds; 0 for never."""

    def interrupt(self, pids: Mapping[int, int]) -> None:
        """Send SIGINT to ranks; their process ids by rank."""

    def state(self, rank: int) -> State:
        """What the rank does now."""

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank; zeros where it told nothing."""

    def clocks(self) -> list[float]:
        """Seconds to add to each rank's times to have them on one clock."""

    def abandon(self) -> None:
        """Nobody will ask for the job again: what it leaves may go when it has ended."""

    def close(self) -> None:
        """The job has ended, and what it left has been read: let go of it."""


class Place(Protocol):
    """One or several machines."""

    nodes: int
    patience: float  # seconds for the ranks of a session to start and report
    parting: float  # seconds until a job has ended, and says why, whose ranks are gone
    session_target: str  # what each rank of a session calls

    def plan(self, wanted: Wanted) -> tuple[Request, tuple[str, ...]]:
        """The request of a job as it would run here; notes for the user. ValueError: what does not fit."""

    def start(self, request: Request, payload: bytes, prepare: Prepare) -> Run:
        """Start a job. payload: the pickled call. prepare: called with the job's directory before."""

    def listen(self, directory: Path) -> Listener:
        """Listen for the ranks of the session whose job has this directory."""


def nothing(directory: Path) -> None:
    """What `Place.start` prepares for a job that needs nothing more."""
