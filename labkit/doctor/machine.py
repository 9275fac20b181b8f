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
# Of the 107 bytes of a socket's path multiprocessing has its own names in the folder for temporary files.
LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")


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
    """The folder for jobs: writable, with room, and for sockets. Ranks take one by whatever path; those that
    Python's multiprocessing makes there itself need a short one.
    """
    topic, folder = "temporary folder", os.environ.get("TMPDIR", "/tmp")
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryDirectory(prefix="labkit-doctor-") as made:
            Path(made, "file").write_bytes(b"x" * MIB)
            _make_socket(made)
    except OSError as error:
        return [Finding(topic, "failed", f"{folder}: {error}", "export TMPDIR=/path/to/another/folder")]
    if (length := len(os.fsencode(folder))) > LONGEST_FOLDER:
        says = f"{folder}: {length} bytes; data loaders with workers want {LONGEST_FOLDER} at most"
        return [Finding(topic, "note", says, "export TMPDIR=/path/to/a/short/folder")]
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free > GIB else "note"
    return [Finding(topic, state, f"{folder}, {free / GIB:.1f} GiB free")]


def _make_socket(folder: str) -> None:
    """As a session does: by the folder's number, since a path may be longer than a socket's address."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(f"/proc/self/fd/{number}/socket")
    finally:
        os.close(number)
