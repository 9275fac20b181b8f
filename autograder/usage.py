"""What a sandbox uses and sends, read from the kernel's own counters, outside of it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """memory: bytes resident in all processes, what they share counted once; processes: threads of all of
    them.
    """

    memory: int = 0
    processes: int = 0
    files: int = 0


@dataclass(frozen=True)
class Traffic:
    """What the loopback of a sandbox has carried since it started."""

    bytes: int
    packets: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.bytes - earlier.bytes, self.packets - earlier.packets)

    @classmethod
    def read(cls, proc: Path) -> Traffic | None:
        """The counters of the network a process lives in; None when the process is gone."""
        try:
            lines = (proc / "net/dev").read_text().splitlines()
        except OSError:
            return None
        fields = next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()
        return cls(int(fields[0]), int(fields[1]))


def usage_of(proc: Path, out: Path, launcher: int, confined: bool) -> Usage:
    """What runs in the sandbox whose first process is `proc`, whose /out is `out`."""
    try:
        if confined:
            pids = [proc / "root/proc" / name for name in os.listdir(proc / "root/proc") if name.isdigit()]
        else:
            pids = [Path(f"/proc/{p.pid}") for p in psutil.Process(launcher).children(recursive=True)]
        disk = os.statvfs(out)
    except (OSError, psutil.Error):
        return Usage()  # it has just ended
    own, threads = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident, shared = (int(word) for word in (pid / "statm").read_text().split()[1:3])
            own += (resident - shared) * PAGE
            threads += int((pid / "stat").read_text().rsplit(")", 1)[1].split()[17])
    return Usage(own, threads, disk.f_files - disk.f_ffree if confined else 0)


def end_all(root: int) -> None:
    """Kill a process's descendants, for a run without a sandbox."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
