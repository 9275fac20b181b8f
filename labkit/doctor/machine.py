"""Cores, memory, and room for files: how many ranks this machine holds."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from labkit import hosts
from labkit.doctor.finding import GIB, MIB, Finding, State

RANK_BYTES = 200 * MIB  # a rank's own: 60 when forked from the warm engine, and a lesson's tensors
MOST_RANKS = 16  # what lessons ask for at most, with room


def probe_ranks() -> list[Finding]:
    """Cores we may use, memory we may use, and how many ranks at once that holds."""
    cores = hosts.cores()
    free = hosts.free_memory()
    fit = min(MOST_RANKS, int(free * 0.8 / RANK_BYTES))
    at_once = f"{min(cores, fit)} compute at the same time, more take turns"
    state: State = "ok" if fit >= 8 else "note" if fit >= 4 else "failed"
    return [
        Finding("cores", "ok", f"{cores} of {os.cpu_count()} usable"),
        Finding("memory", "ok" if free >= 4 * GIB else "note", f"{free / GIB:.1f} GiB free to use"),
        Finding("ranks", state, f"{fit} fit ({RANK_BYTES // MIB} MiB each, lessons use up to 8); {at_once}"),
    ]


def probe_shared_memory() -> list[Finding]:
    """Room in /dev/shm, for data loaders with workers."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return [Finding("shared memory", "note", "no /dev/shm; data loaders with workers will not run")]
    if free < 256 * MIB:
        fix = "docker run --shm-size=2g ... (or ask for it in the Hub's container settings)"
        return [
            Finding(
                "shared memory",
                "note",
                f"{free // MIB} MiB in /dev/shm; NCCL and data loaders want more",
                fix,
            )
        ]
    return [Finding("shared memory", "ok", f"{free / GIB:.1f} GiB in /dev/shm")]


def probe_temporary_folder() -> list[Finding]:
    """The folder for jobs: writable, with room, and short enough for a socket's path (108 bytes)."""
    folder = os.environ.get("TMPDIR", "/tmp")
    try:
        folder = tempfile.gettempdir()
        with (
            tempfile.TemporaryDirectory(prefix="labkit-doctor-") as made,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            Path(made, "file").write_bytes(b"x" * MIB)
            probe.bind(str(Path(made, "socket")))
    except OSError as error:
        return [
            Finding(
                "temporary folder", "failed", f"{folder}: {error}", "export TMPDIR=/path/to/a/short/folder"
            )
        ]
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free > GIB else "note"
    return [Finding("temporary folder", state, f"{folder}, {free / GIB:.1f} GiB free")]
