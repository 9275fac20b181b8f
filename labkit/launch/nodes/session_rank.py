"""A session's rank on another machine: it reaches the notebook over TCP."""

from __future__ import annotations

from pathlib import Path

from labkit.launch.engine.session_rank import answer_on
from labkit.launch.nodes import wire


def serve(directory: str) -> None:
    """The function of the ranks' job: answer the notebook until it hangs up."""
    answer_on(wire.connect(Path(directory)), directory)
