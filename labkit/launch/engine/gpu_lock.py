"""Keeps two notebooks from taking the same GPUs of a machine. Nothing on disk: the system drops a lock with
its owner.

A lock is a name in the machine's abstract socket namespace, which one process at a time can listen on. Who
connects to it is told by the system which process and user that is.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.hosts import gpu_count

_ASKED = 4096  # times that others are told who has a GPU; Linux may allow less (net.core.somaxconn)


def device_names(devices: Sequence[int], environment: Mapping[str, str]) -> list[str]:
    """Names of GPUs that all processes of the machine share: with CUDA_VISIBLE_DEVICES=2,3 index 1 is "3".

    In a job of Slurm that may touch no other GPUs (ConstrainDevices), that variable counts the job's own from
    0, and so does the neighbour's job; Slurm says which of the machine's they are (sbatch(1), srun(1)).
    ValueError for an index that the variable does not have.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return sorted({str(index) for index in devices})
    shown = [part.strip() for part in visible.split(",")][: gpu_count(environment)]
    if devices and max(devices) >= len(shown):
        found = f"on {socket.gethostname()} CUDA_VISIBLE_DEVICES={visible!r} shows {len(shown)}"
        raise ValueError(f"ranks were to have {max(devices) + 1} GPUs, and {found}: take fewer, or show more")
    known = _of_the_machine(shown, environment)
    return sorted({known[index] for index in devices})


def _of_the_machine(names: list[str], environment: Mapping[str, str]) -> list[str]:
    """GPUs' numbers on the machine, where `names` may be their numbers in a job."""
    said = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    of_job = [part.strip() for part in said.split(",")]
    counted = {str(number): name for number, name in enumerate(of_job)}
    if set(names) <= set(of_job) or not set(names) <= set(counted):
        return names
    return [counted[name] for name in names]


class GpuLocks:
    """The GPUs that one engine has taken. Its jobs may share a GPU; those of other engines may not."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._jobs: Counter[str] = Counter()

    def take(self, names: Sequence[str]) -> str:
        """Take GPUs for a job. "" when that worked; otherwise who holds one of them, and none is taken.

        OSError, and none is taken, when there cannot be another socket.
        """
        for name in names:
            if name not in self._sockets:
                try:
                    self._sockets[name] = _lock(name)
                except OSError as error:
                    self._drop_unused()
                    if error.errno != errno.EADDRINUSE:
                        raise
                    return f"GPU {name} is in use by {holder(name)}"
        self._jobs.update(names)
        return ""

    def give_back(self, names: Sequence[str]) -> None:
        """The job that took them has ended."""
        self._jobs.subtract(names)
        self._drop_unused()

    def let_go(self) -> None:
        """In a fork of the process that took them: else a GPU stays taken until the fork has ended too."""
        for listener in self._sockets.values():
            listener.close()

    def _drop_unused(self) -> None:
        for name in [name for name in self._sockets if self._jobs[name] <= 0]:
            self._sockets.pop(name).close()


def _lock(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address(name))
        listener.listen(_ASKED)
    except OSError:
        listener.close()
        raise
    return listener


def _address(name: str) -> str:
    return f"\0labkit/gpu/{name}"


def holder(name: str) -> str:
    """Who holds a GPU: 'alice (process 123: python ...)'."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # nobody accepts: a queue that is full would have us wait for ever
        try:
            probe.connect(_address(name))
        except OSError:
            return "another notebook"
        raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"user {uid}"
    return f"{user} (process {pid}{_notebook(pid)})"


def _notebook(engine: int) -> str:
    """The directory of the notebook whose engine this is, as far as this user may see it."""
    try:
        return f", in {os.readlink(Path('/proc', str(engine), 'cwd'))}"
    except OSError:
        return ""
