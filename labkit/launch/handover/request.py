"""What a job is, as `request.json` in its directory: the launcher writes it, agent and ranks read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

REQUEST = "request.json"
PAYLOAD = "payload.pkl"
VERDICT = "job.json"
CONTROL = "control"
MAX_LOG_BYTES = 256 << 20


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
        (directory / REQUEST).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(directory: Path) -> Request:
        return Request(**json.loads((directory / REQUEST).read_text()))


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
