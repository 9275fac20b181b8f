"""What another user of the machine finds of somebody's processes, and what it can do to them.

Tests use `Stranger`, which runs this file, and it becomes that user. It reads a question a line, as JSON:
{"pids", "inodes" (of their sockets), "files", "crowd" (whether to come in numbers)}, and answers each with a
line. Connections of a crowd are held until stdin closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

NOBODY = 65534

PLACES = ("/tmp", "/dev/shm", "/run", "/var")
SECRETS = ("environ", "maps", "mem", "fd", "fdinfo", "cwd", "root", "exe", "io", "stack", "auxv", "map_files")
CROWD = 24  # connections to each port: more than a rank has expected of others until then
SENDS, RECEIVES = 1, 3  # what a message of gloo's is


def listening(inodes: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """(kind, address, port) of the sockets with these inodes that others can send something to."""
    wanted = set(inodes)
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{kind}") as table:
            rows = [line.split() for line in table][1:]
        for row in rows:
            if row[9] in wanted and (row[3] == "0A" or kind.startswith("udp")):
                address, _, port = row[1].partition(":")
                yield kind, _numbers(address), int(port, 16)
    with open("/proc/net/unix") as table:
        for row in [line.rstrip("\n").split(maxsplit=7) for line in table][1:]:
            if row[6] in wanted and int(row[3], 16) & 0x10000:
                yield "unix", row[7] if len(row) > 7 else "", 0


def _numbers(address: str) -> str:
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def connects(kind: str, address: str, port: int) -> bool:
    family = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6, "unix": socket.AF_UNIX}[kind]
    with socket.socket(family) as probe:
        probe.settimeout(5)
        try:
            probe.connect((address, port) if port else address.replace("@", "\0", 1))
        except OSError:
            return False
    return True


def opens(path: str) -> Iterator[str]:
    """How a file or folder lets itself be opened."""
    for how, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
        with suppress(OSError):
            os.close(os.open(path, flags | os.O_NONBLOCK))
            yield f"{how} {path}"


def done_to(pid: int) -> Iterator[str]:
    """What of a process's own can be read, and whether it can be signalled or traced."""
    for name in SECRETS:
        path = f"/proc/{pid}/{name}"
        with suppress(OSError):
            if name in ("cwd", "root", "exe"):
                os.readlink(path)
            elif name in ("fd", "fdinfo", "map_files"):
                os.listdir(path)
            else:
                with open(path, "rb") as file:
                    file.read(1)
            yield name
    with suppress(OSError):
        os.kill(pid, 0)
        yield "signal"
    if ctypes.CDLL(None).ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
        yield "trace"


def crowd(port: int) -> list[socket.socket]:
    """Connections that begin as those of gloo do, with the number of the pair that they are for."""
    made = []
    with suppress(OSError):  # the end of the job
        for number in range(CROWD):
            made.append(socket.create_connection(("127.0.0.1", port), 5))
            made[-1].sendall(number.to_bytes(8, "little"))
            made[-1].setblocking(False)
    return made


def play_a_rank(held: Iterable[socket.socket]) -> None:
    """Send whoever is ready to receive something from a rank that many bytes, as gloo does."""
    for one in held:
        with suppress(OSError):
            said = one.recv(1 << 16)
            for at in range(0, len(said) - 47, 48):
                _, what, slot, _, size, _ = struct.unpack_from("<6Q", said, at)
                if what == RECEIVES:
                    one.sendall(struct.pack("<6Q", 48 + size, SENDS, slot, 0, size, 0) + bytes(size))


def answer(question: dict[str, Any]) -> dict[str, Any]:
    found = list(listening(question["inodes"]))
    return {
        "reached": sorted(f"{one[0]} {one[1]}" for one in found if connects(*one)),
        "ports": [port for kind, _, port in found if kind == "tcp"],
        "files": [how for path in question["files"] for how in opens(path)],
        "processes": sorted({what for pid in question["pids"] for what in done_to(pid)}),
        "user": os.getuid(),
    }


def become_nobody() -> None:
    """From here on; the interpreter itself may lie where nobody else can read."""
    "host".encode("idna")  # which Python imports when the first host is looked up
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def main() -> None:
    become_nobody()
    held: dict[int, list[socket.socket]] = {}
    for line in sys.stdin:
        question = json.loads(line)
        told = answer(question)
        play_a_rank(one for made in held.values() for one in made)
        if question["crowd"]:
            held |= {port: crowd(port) for port in told["ports"] if port not in held}
        print(json.dumps(told), flush=True)


# -- the side of the tests


class Stranger:
    """A process of the user `nobody`, which is asked what it can do to some processes of ours."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)

    def ask(self, pids: Collection[int], crowd: bool = False) -> dict[str, Any]:
        """What it finds of these processes and can do. crowd: it also stays connected to all their ports."""
        opened = {link for pid in pids for link in _opened_by(pid)}
        installed = sys.prefix  # for everybody, also where the whole checkout lies in /tmp
        question = {
            "pids": list(pids),
            "inodes": [link[8:-1] for link in opened if link.startswith("socket:[")],
            "files": sorted(
                link for link in opened if link.startswith(PLACES) and not link.startswith(installed)
            ),
            "crowd": crowd,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert told["user"] == NOBODY
        return told


def _opened_by(pid: int) -> Iterator[str]:
    """What a process holds open or has in its memory, and the folders of these that are not for everybody."""
    found = []
    with suppress(OSError):
        for folder in ("fd", "map_files"):
            for entry in os.scandir(f"/proc/{pid}/{folder}"):
                with suppress(OSError):
                    found.append(os.readlink(entry.path))
    for link in found:
        yield link
        if link.startswith("/") and not _for_everybody(os.path.dirname(link)):
            yield os.path.dirname(link)


def _for_everybody(folder: str) -> bool:
    """As /tmp and /dev/shm are."""
    return os.path.isdir(folder) and bool(os.stat(folder).st_mode & stat.S_ISVTX)


if __name__ == "__main__":
    main()
