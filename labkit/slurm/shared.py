"""Where the nodes of a cluster and its login node know of each other: a folder that all of them see."""

from __future__ import annotations

import os
from pathlib import Path


def shared_root() -> Path:
    """LABKIT_SHARED, else ~/.labkit: made, for this user alone, where it is not there."""
    root = Path(os.environ.get("LABKIT_SHARED") or Path.home() / ".labkit")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root
