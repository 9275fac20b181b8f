"""What a sandbox uses and sends, read from the kernel's own counters, outside of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_COUNTED = re.compile(r"^(RssAnon|RssShmem|Threads):\s+(\d+)", re.MULTILINE)  # in /proc/PID/status


@dataclass(frozen=True)
class Usage:
    """memory: bytes resident in all processes but those of files; processes: threads of all of them; files:
    how many there are; sockets: how many one network has, the most; written, shared: bytes in files, where
    the kernel does not see to their limit.
    """

    memory: int = 0
    processes: int = 0
    sockets: int = 0
    files: int = 0
    written: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Traffic:
    """What the loopback of a sandbox has carried since it started. resent: segments that TCP sent again."""

    bytes: int
    packets: int
    resent: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.bytes - earlier.bytes, self.packets - earlier.packets, self.resent - earlier.resent
        )

    @classmethod
    def of(cls, devices: str, protocols: str) -> Traffic:
        """The counters in the texts of /proc/PID/net/dev and /proc/PID/net/snmp."""
        loopback = next(line for line in devices.splitlines() if line.strip().startswith("lo:"))
        fields = loopback.split(":")[1].split()
        names, values = (line.split() for line in protocols.splitlines() if line.startswith("Tcp:"))
        return cls(int(fields[0]), int(fields[1]), int(values[names.index("RetransSegs")]))


def in_use(processes: Iterable[Path]) -> tuple[int, int]:
    """Bytes of memory and threads of the processes with these folders in /proc; those that end meanwhile do
    not count. Memory that processes share and no file holds counts in each of them: the kernel has no other
    limit for it.
    """
    own, threads = 0, 0
    for process in processes:
        with contextlib.suppress(OSError):
            found = dict(_COUNTED.findall((process / "status").read_text(errors="replace")))
            own += 1024 * (int(found.get("RssAnon", 0)) + int(found.get("RssShmem", 0)))
            threads += int(found.get("Threads", 0))
    return own, threads


def sockets_of(processes: Iterable[Path]) -> int:
    """How many sockets the network of one of these processes has, the most. Other than of memory and
    threads, the kernel keeps this of a network as a whole.
    """
    found = [0]
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found.append(int((process / "net/sockstat").read_text().split(maxsplit=3)[2]))
    return max(found)


def descendants(pid: int) -> Iterator[int]:
    """All processes below one, as the kernel lists them: without going through everything that runs here."""
    above = [pid]
    while above:
        tasks = Path(f"/proc/{above.pop()}/task")
        with contextlib.suppress(OSError):
            for task in os.listdir(tasks):
                with contextlib.suppress(OSError):
                    children = [int(word) for word in (tasks / task / "children").read_text().split()]
                    yield from children
                    above += children


def end_all(root: int) -> None:
    """Kill a process's descendants, for a run without a sandbox."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
