"""Where the nodes of a cluster and its login node know of each other: a folder that all of them see."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.slurm.commands import SlurmError


def shared_root() -> Path:
    """LABKIT_SHARED, else ~/.labkit: made, for this user alone, where it is not there.

    SlurmError when it cannot be had, or not be written to.
    """
    root = Path(os.environ.get("LABKIT_SHARED") or Path.home() / ".labkit")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(root, error) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise unusable(root, "this user may not write there")
    return root


def private_folder(path: Path) -> Path:
    """A folder below it that this user alone can enter. SlurmError when it cannot be had, or is another's."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise unusable(path, error) from None
    return path


def unusable(path: Path, why: object) -> SlurmError:
    """What is told of a folder that cannot be used."""
    named = "LABKIT_SHARED names it" if os.environ.get("LABKIT_SHARED") else "LABKIT_SHARED names another"
    why = why.strerror if isinstance(why, OSError) else why
    wanted = "jobs need a folder of your own, with space, that all nodes see"
    return SlurmError(f"{path} cannot be used ({why}): {wanted}; {named}")
