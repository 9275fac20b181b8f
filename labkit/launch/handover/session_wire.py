"""The socket between a notebook and its session's ranks: a file in the job's private directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOCKET = "session"


def connect_to(plain: socket.socket, path: Path) -> None:
    """Connect to a socket file whose path may be longer than the 107 bytes that the system takes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        plain.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def listen_at(path: Path) -> socket.socket:
    """A listening socket at the path, for this user only (the directory is private)."""
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
