"""The files by which the notebook and the nodes of a job know of each other, in a directory that all see.

Network file systems may remember for half a minute that a file was not there. So the notebook makes, before
the job starts, every file that somebody will look for while it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from labkit.launch.handover.directory import remove
from labkit.launch.handover.owner import OWNER, owner_of, sign
from labkit.launch.handover.request import Request, end_path, log_path, status_path
from labkit.launch.handover.reserved import read_reserved, reserve, write_reserved
from labkit.launch.nodes.beats import beat_path
from labkit.record.state import State
from labkit.slurm import commands as slurm
from labkit.slurm.shared import shared_root, unusable

ORDERS = "orders"  # lines of JSON from the notebook: {"do": "stop" | "deadline" | "interrupt", ...}
EXIT = "exit"  # the exit status of srun in a job of its own
BEGUN = "begun"  # empty until the script of a job of its own runs
MEETING = "meeting.json"  # where the nodes' store is: {"address", "port"}
SRUN_LOG = "srun.log"
JOB_NAME = "labkit"  # of a job of its own, by which Slurm finds it
_ABANDONED = 7 * 86400.0  # seconds in which nothing of a job was written, not even its nodes' signs of life


@dataclass(frozen=True)
class Report:
    """What a node tells of itself.

    number: SLURM_NODEID. state: "arrived", "running", "finished" (every rank returned) or "ended" (for
    `reason`). first, ranks: it has the ranks first ... first + ranks - 1. clock: seconds to add to its
    monotonic clock for the time of day. timeout: of the last cell or call. states, progress: of its ranks.
    """

    number: int
    node: str
    step: str
    state: str = "arrived"
    reason: str = ""
    first: int = 0
    ranks: int = 0
    clock: float = 0.0
    timeout: float = 0.0
    states: list[State] = field(default_factory=list)
    progress: list[tuple[float, float, str]] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        write_reserved(_report_path(directory, self.number), self)

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.ranks)


def _report_path(directory: Path, number: int) -> Path:
    return directory / f"node{number}.json"


def read_reports(directory: Path, nodes: int) -> dict[int, Report]:
    """What the nodes have told so far, by number."""
    found = {number: read_reserved(_report_path(directory, number)) for number in range(nodes)}
    return {
        number: msgspec.convert(data, Report, str_keys=True)
        for number, data in found.items()
        if data is not None
    }


def control_path(directory: Path, number: int) -> Path:
    """The control page of one node's agent."""
    return directory / f"node{number}.control"


def new_directory(request: Request) -> Path:
    """A directory (mode 0700) for one job, with the files that are looked for while it runs.

    SlurmError when it cannot be had.
    """
    root = shared_root()
    remove_stale(root)
    try:
        path = Path(tempfile.mkdtemp(prefix="job-", dir=root))
    except OSError as error:
        raise unusable(root, error) from None
    try:
        _furnish(path, request)
    except OSError as error:  # a full disk
        remove(path)
        raise unusable(root, error) from None
    return path


def _furnish(path: Path, request: Request) -> None:
    sign(path)
    for name in (EXIT, BEGUN, SRUN_LOG):
        (path / name).touch(0o600)
    for number in range(request.nodes):
        beat_path(path, number).touch(0o600)
    for rank in range(request.ranks):
        log_path(path, rank).touch(0o600)
        reserve(end_path(path, rank))
        reserve(status_path(path, rank))
    for file in [
        *(path / ORDERS, path / MEETING),
        *(_report_path(path, number) for number in range(request.nodes)),
    ]:
        reserve(file)


def give_order(directory: Path, **order: Any) -> None:
    """Tell every node something. Room is taken for some 1,500 orders; OSError where a disk is full then."""
    with open(directory / ORDERS, "r+b", buffering=0) as file:
        said = file.read().rstrip(b"\0")  # behind it is the room that is left
        os.pwrite(file.fileno(), json.dumps(order).encode() + b"\n", len(said))


class Orders:
    """The node's side: what the notebook has said since the last look."""

    def __init__(self, directory: Path) -> None:
        self._path, self._read = directory / ORDERS, 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:  # opening it asks the file system for the newest content
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._read += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]


def remove_stale(root: Path) -> None:
    """Remove what notebooks that no longer run have left.

    Those of another machine cannot be asked for; of these it is what nobody has written to for a week, while
    no job of `launch` waits in the queue: that one's nodes write nothing yet.
    """
    others = []
    for path in root.glob("job-*"):
        owner = owner_of(path)
        if owner in ("elsewhere", "unknown"):
            others.append(path)
        elif owner == "gone":
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > 60:
                    remove(path)
    if (abandoned := [path for path in others if _is_abandoned(path)]) and _none_waits():
        for path in abandoned:
            _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    """Without a signature only what is empty: a full folder of such a name may be somebody's own."""
    if (path / OWNER).exists():
        remove(path)
    else:
        with contextlib.suppress(OSError):
            path.rmdir()


def _is_abandoned(path: Path) -> bool:
    with contextlib.suppress(OSError):
        newest = max(one.stat().st_mtime for one in (path, *path.iterdir()))
        return time.time() - newest > _ABANDONED
    return False


def _none_waits() -> bool:
    """Whether Slurm says that no job that `launch` has submitted waits."""
    with contextlib.suppress(slurm.SlurmError):
        return not slurm.command("squeue", "--me", "--noheader", f"--name={JOB_NAME}", "--states=PENDING")
    return False
