"""What is asked for, and what a job is: `request.json` in its directory, which agent and ranks read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

REQUEST = "request.json"
PAYLOAD = "payload.pkl"
VERDICT = "job.json"
CONTROL = "control"
MAX_LOG_BYTES = 256 << 20


@dataclass(frozen=True)
class Wanted:
    """What somebody asks of a place. ranks, backend: None lets the place choose. The rest: see `Request`."""

    ranks: int | None = None
    backend: str | None = None
    timeout: float = 60
    env: Mapping[str, str] = field(default_factory=dict)
    record: bool = True
    imports: Sequence[str] = ()


@dataclass(frozen=True)
class Request:
    """One job.

    target: "payload" for the pickled function in the directory, else "module:function", called with the
    directory. timeout: seconds until the job is ended; 0 for never. devices: GPU of each rank, empty on CPU.
    threads: how many threads torch may use in each rank. nodes: how many machines the ranks are spread over.
    imports: modules that the engine imports before it forks the job, because every rank would.
    """

    ranks: int
    backend: str
    timeout: float
    target: str = "payload"
    env: dict[str, str] = field(default_factory=dict)
    record: bool = True
    cwd: str = "."
    sys_path: list[str] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    threads: int = 1
    max_result_bytes: int = 512 << 20
    nodes: int = 1
    imports: list[str] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        (directory / REQUEST).write_text(json.dumps(msgspec.to_builtins(self)))

    @staticmethod
    def read(directory: Path) -> Request:
        return msgspec.convert(json.loads((directory / REQUEST).read_text()), Request)


def state_path(directory: Path, rank: int) -> Path:
    """The rank's state page."""
    return directory / f"rank{rank}.state"


def log_path(directory: Path, rank: int) -> Path:
    """Everything the rank printed, stdout and stderr as they came."""
    return directory / f"rank{rank}.log"


def end_path(directory: Path, rank: int) -> Path:
    """How the rank's function ended, in its own words."""
    return directory / f"rank{rank}.end.json"


def stack_path(directory: Path, rank: int) -> Path:
    """Python stacks of the rank, written when it crashed or was asked where it is."""
    return directory / f"rank{rank}.stack"


def status_path(directory: Path, rank: int) -> Path:
    """What the agent knows about the rank at the end of the job."""
    return directory / f"rank{rank}.status.json"


def records_path(directory: Path, rank: int) -> Path:
    """Communication, spans and memory of the rank."""
    return directory / f"rank{rank}.records.json"


def result_path(directory: Path, rank: int) -> Path:
    """What the rank's function returned, pickled."""
    return directory / f"rank{rank}.result.pkl"
