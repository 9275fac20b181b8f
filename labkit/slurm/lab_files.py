"""Where a JupyterLab in a job says how to reach it: a file for its user only, in a folder all nodes see."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from labkit.slurm.shared import private_folder, shared_root, unusable
from labkit.whole_file import write_whole

_LOG_KEPT = 86400.0  # seconds: of a job that Slurm has forgotten, to be read


class Connection(msgspec.Struct, frozen=True):
    """How to reach a JupyterLab. tunnel: the ssh command; url: to open once that runs.

    through: to open at once, in the browser that has the JupyterLab in whose terminal it was asked for.
    cluster: whose job it is; clusters that share homes number their jobs each for itself.
    """

    job: str
    node: str
    port: int
    url: str
    tunnel: str
    idle: float
    through: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        lines = ["", f"JupyterLab runs on {self.node}, as Slurm job {self.job}.", ""]
        if self.through:
            lines += [
                "In the browser that has this JupyterLab:",
                "",
                f"    {self.through}",
                "",
                "Or, by ssh:",
                "",
            ]
        lines += ["On your own machine, in a terminal that stays open:", "", f"    {self.tunnel}", ""]
        lines += ["then in your browser:", "", f"    {self.url}", ""]
        if self.idle:
            lines.append(
                f"It ends by itself: idle kernels {self.idle:g} minutes after their page was closed, the job"
                f" {self.idle:g} minutes after the last use. Closing the browser is enough."
            )
        return "\n".join([*lines, "`labkit lab --stop` ends it now.", ""])


def folder() -> Path:
    """LABKIT_SHARED/lab, or ~/.labkit/lab, which only this user can enter."""
    return private_folder(shared_root() / "lab")


def path_of(job: str) -> Path:
    """The file that says how to reach the JupyterLab of a Slurm job."""
    return folder() / f"{job}.json"


def log_path(job: str) -> Path:
    """What the job prints: made by Slurm when it starts the job."""
    return folder() / f"job-{job}.log"


def write(connection: Connection) -> Path:
    """Write it where this user alone may enter: the URL has the token in it. SlurmError if that fails."""
    path = path_of(connection.job)
    try:
        write_whole(path, msgspec.json.encode(connection))
    except OSError as error:
        raise unusable(path.parent, error) from None
    return path


def read(job: str) -> Connection | None:
    """What the job has written; None as long as it has not."""
    os.listdir(folder())  # a network file system then looks whether there is something new
    try:
        return msgspec.json.decode(path_of(job).read_bytes(), type=Connection)
    except (OSError, msgspec.DecodeError):
        return None


def left_behind() -> set[str]:
    """The numbers of all jobs of which there is a file."""
    return {path.stem.removeprefix("job-") for path in folder().iterdir() if path.suffix in (".json", ".log")}


def remove(jobs: set[str], cluster: str) -> None:
    """Remove the files of jobs of this cluster that are over; their logs once nobody wrote for a day."""
    for job in jobs:
        with contextlib.suppress(OSError):
            found = read(job)
            if found is not None and found.cluster == cluster:
                path_of(job).unlink(missing_ok=True)
            if time.time() - log_path(job).stat().st_mtime > _LOG_KEPT:
                log_path(job).unlink()
