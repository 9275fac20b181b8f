"""Where a JupyterLab in a job says how to reach it: a file for its user only, in a folder all nodes see."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Connection:
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
    root = Path(os.environ.get("LABKIT_SHARED") or Path.home() / ".labkit")
    path = root / "lab"
    for one in (root, path):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def path_of(job: str) -> Path:
    return folder() / f"{job}.json"


def write(connection: Connection) -> Path:
    """Write it for this user only: the URL has the token in it."""
    path = path_of(connection.job)
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(asdict(connection), file)
    unfinished.rename(path)
    return path


def read(job: str) -> Connection | None:
    """What the job has written; None as long as it has not."""
    os.listdir(folder())  # a network file system then looks whether there is something new
    try:
        return Connection(**json.loads(path_of(job).read_text()))
    except (OSError, ValueError, TypeError):
        return None
