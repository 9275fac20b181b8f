"""What the launcher's tests share."""

from __future__ import annotations

from pathlib import Path

from waiting import soon

from labkit import processes
from labkit.launch import client


def gone(engine: Path, within: float = 3.0) -> bool:
    """Whether every process and the directory of an engine are gone soon."""
    return soon(lambda: not engine.exists() and not processes.marked(str(engine)), within)


def jobs_of(engine: Path) -> list[Path]:
    """The directories of jobs that are in an engine's directory."""
    return list(engine.glob("job*"))


def leftovers() -> list[str]:
    """Processes and files that jobs of this process's engine have left."""
    engine = client.running_engine()
    if engine is None:
        return []
    pids = [pid for pid in processes.marked(str(engine.directory)) if processes.is_alive(pid)]
    files = {path.name for path in engine.directory.iterdir()} - {"owner.json", "engine.log"}
    return [f"process {pid}" for pid in pids if pid != engine.pid] + sorted(files)
