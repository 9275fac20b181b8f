"""How a job can fail, as exceptions whose text tells a person what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str
    source: str = ""


@dataclass(frozen=True)
class RankReport:
    """How one rank ended.

    state: "finished", "failed", "killed", "waiting", "running" or "starting" (when the job was ended).
    waiting_for: what it waited for, in words; "" when it did not wait.
    line: the last known line of the user's own code, as "file:number".
    error: what it raised or died of, in one line. traceback: the user's frames, outermost first.
    node: the machine it ran on, where a job has several.
    """

    rank: int
    state: str
    waiting_for: str = ""
    line: str = ""
    error: str = ""
    traceback: tuple[Frame, ...] = ()
    node: str = ""

    @property
    def name(self) -> str:
        """'rank 2', or 'rank 2 on n1' where a job has several nodes."""
        return f"rank {self.rank}" + (f" on {self.node}" if self.node else "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> RankReport:
        """The inverse of `to_json`."""
        return RankReport(**{**data, "traceback": tuple(Frame(**frame) for frame in data["traceback"])})


@dataclass(frozen=True)
class Diagnosis:
    """Why a job failed: a verdict, the rank that failed first (None: not one rank's doing), and all ranks.

    verdict: "error", "deadlock", "timeout", "killed", "out_of_memory", "infrastructure", "cancelled",
    "interrupted".
    """

    verdict: str
    summary: str
    rank: int | None = None
    ranks: tuple[RankReport, ...] = ()
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Diagnosis:
        """The inverse of `to_json`."""
        return Diagnosis(**{**data, "ranks": tuple(RankReport.from_json(rank) for rank in data["ranks"])})


class LaunchError(RuntimeError):
    """A job that did not finish. `str()` of it is written for the person who wrote the code."""

    def __init__(self, diagnosis: Diagnosis, output: Sequence[str] = ()) -> None:
        super().__init__(diagnosis, output)
        self.diagnosis = diagnosis
        self.output = list(output)

    @property
    def verdict(self) -> str:
        """One of the verdicts of `Diagnosis`."""
        return self.diagnosis.verdict

    @property
    def rank(self) -> int | None:
        """The rank that failed first; None where it was not a rank."""
        return self.diagnosis.rank

    @property
    def ranks(self) -> Sequence[RankReport]:
        """What is known of each rank, in order."""
        return self.diagnosis.ranks

    def __str__(self) -> str:
        from labkit.launch.failure.describe import failure_text

        return "\n\n".join([failure_text(self.diagnosis, self.output), *getattr(self, "__notes__", ())])

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of the frames of the launcher, which are nobody's business."""
        return [f"{type(self).__name__}: {self}"]


class RankError(LaunchError):
    """A rank raised an exception, or left before its function returned."""


class DeadlockError(LaunchError):
    """Ranks wait for each other, or for something that cannot come."""


class JobTimeout(LaunchError):
    """The job did not finish within its `timeout`."""


class RankKilled(LaunchError):
    """A rank was ended by a signal: a crash in compiled code, or someone's kill."""


class OutOfMemory(LaunchError):
    """A rank ran out of memory."""


class InfrastructureError(LaunchError):
    """The launcher, the machine or the disk failed; the code that ran is not to blame."""


class JobCancelled(LaunchError):
    """The job was cancelled or interrupted."""


_CLASSES: dict[str, type[LaunchError]] = {
    "error": RankError,
    "deadlock": DeadlockError,
    "timeout": JobTimeout,
    "killed": RankKilled,
    "out_of_memory": OutOfMemory,
    "infrastructure": InfrastructureError,
    "cancelled": JobCancelled,
    "interrupted": JobCancelled,
}


def error_for(diagnosis: Diagnosis, output: list[str]) -> LaunchError:
    """The exception that fits a diagnosis."""
    return _CLASSES[diagnosis.verdict](diagnosis, output)
