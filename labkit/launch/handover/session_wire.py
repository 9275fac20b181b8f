"""The socket between a notebook and its session's ranks: a file in the job's private directory."""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

SOCKET = "session"


class Listener:
    """The notebook's side of a session on this machine; the directory lets nobody else in."""

    def __init__(self, directory: Path) -> None:
        self._socket = _listen_at(directory / SOCKET)

    def accept(self, seconds: float) -> Connection | None:
        """The connection of the next rank; None when none came within that time."""
        self._socket.settimeout(seconds)
        try:
            accepted, _ = self._socket.accept()
        except TimeoutError:
            return None
        accepted.setblocking(True)
        return Connection(accepted.detach())

    def close(self) -> None:
        self._socket.close()


def connect(directory: Path) -> Connection:
    """The rank's side. The path may be longer than the 107 bytes that the system takes."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            return Connection(plain.detach())
    finally:
        os.close(folder)


def _listen_at(path: Path) -> socket.socket:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener
