"""Where a JupyterLab in a job says how to reach it: a file for its user only, in a folder all nodes see."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from labkit.slurm.shared import shared_root
from labkit.whole_file import write_whole


class Connection(msgspec.Struct, frozen=True):
    """How to reach a JupyterLab. tunnel: the ssh command; url: to open once that runs.

    through: to open at once, in the browser that has the JupyterLab in whose terminal it was asked for.
    """

    job: str
    node: str
    port: int
    url: str
    tunnel: str
    idle: float
    through: str = ""

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
    path = shared_root() / "lab"
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def path_of(job: str) -> Path:
    """The file that says how to reach the JupyterLab of a Slurm job."""
    return folder() / f"{job}.json"


def write(connection: Connection) -> Path:
    """Write it where this user alone may enter: the URL has the token in it."""
    path = path_of(connection.job)
    write_whole(path, msgspec.json.encode(connection))
    return path


def read(job: str) -> Connection | None:
    """What the job has written; None as long as it has not."""
    os.listdir(folder())  # a network file system then looks whether there is something new
    try:
        return msgspec.json.decode(path_of(job).read_bytes(), type=Connection)
    except (OSError, msgspec.DecodeError):
        return None
