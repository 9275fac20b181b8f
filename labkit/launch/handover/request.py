"""What is asked for, and what a job is: `request.json` in its directory, which agent and ranks read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from labkit.record.state import MAX_RANKS

REQUEST = "request.json"
PAYLOAD = "payload.pkl"
VERDICT = "job.json"
CONTROL = "control"
STORE = "LABKIT_STORE"  # in a rank's environment: the open socket for the store at MASTER_ADDR:MASTER_PORT
OUTPUT = (
    "LABKIT_OUTPUT"  # in a rank's environment: an open pipe that takes what it prints, in place of its log
)
RANK = "labkit.launch.engine.worker:run_rank"
MAX_LOG_BYTES = 256 << 20
LONGEST_TIMEOUT = 30 * 86400  # seconds


def is_whole(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_timeout(seconds: object, name: str = "timeout") -> None:
    """ValueError for what cannot be waited for. name: of the argument."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds <= LONGEST_TIMEOUT:  # type: ignore[operator]
        days = LONGEST_TIMEOUT // 86400
        raise ValueError(
            f"{name} must be a number of seconds, more than 0 and at most {days} days, found {seconds!r}"
        )


@dataclass(frozen=True)
class Wanted:
    """What somebody asks of a place. ranks, backend: None lets the place choose. gpus: whether ranks take
    GPUs where there are some; without, they see none and talk over gloo. The rest: see `Request`.
    """

    ranks: int | None = None
    backend: str | None = None
    timeout: float = 60
    env: Mapping[str, str] = field(default_factory=dict)
    record: bool = True
    imports: Sequence[str] = ()
    seed: int | None = None
    queue: float | None = None
    gpus: bool = True

    def __post_init__(self) -> None:
        """TypeError or ValueError for what no place could do."""
        if self.ranks is not None and not (is_whole(self.ranks) and 1 <= self.ranks <= MAX_RANKS):
            raise ValueError(f"ranks must be a whole number from 1 to {MAX_RANKS}, found {self.ranks!r}")
        if self.seed is not None and not (is_whole(self.seed) and 0 <= self.seed < 2**63):
            raise ValueError(f"seed must be a whole number from 0, or None, found {self.seed!r}")
        check_timeout(self.timeout)
        if self.queue is not None:
            check_timeout(self.queue, "queue")
        if not isinstance(self.env, Mapping):
            raise TypeError(f"env must be a dict of names and values, found {self.env!r}")
        for name, value in self.env.items():
            _check_variable(name, value)


def _check_variable(name: object, value: object) -> None:
    """TypeError or ValueError for what the system takes for no variable of an environment."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"env must have texts as names and values, found {name!r}: {value!r}")
    try:
        whole = not {"\0", "="} & set(name) and "\0" not in value and (name + value).encode()
    except UnicodeEncodeError:
        whole = b""
    if not name or not whole:
        told = "a name needs a character, no = and no zero byte, a value no zero byte"
        raise ValueError(f"env cannot have {name!r}: {value!r}: {told}, and both must be UTF-8")


@dataclass(frozen=True)
class Request:
    """One job.

    target: "payload" for the pickled function in the directory, else "module:function", called with the
    directory. timeout: seconds until the job is ended; 0 for never. devices: GPU of each rank, empty on CPU.
    threads: how many threads torch may use in each rank. nodes: how many machines the ranks are spread over.
    imports: modules that the engine imports before it forks the job, because every rank would. seed: rank r
    begins with the random numbers of seed + r; None for new ones each time. rank: the "module:function" that
    is a rank, called as `worker.run_rank` is. queue: seconds a submitted job may wait for its
    turn; 0 for as long as it takes. key: by which ranks know each other; empty where nobody else can
    reach them.
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
    seed: int | None = None
    rank: str = RANK
    queue: float = 0.0
    key: str = ""

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
