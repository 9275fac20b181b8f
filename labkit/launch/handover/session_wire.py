"""The socket between a notebook and its session's ranks: a file in the job's private directory."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

SOCKET = "session"
_PATIENCE = 0.2  # seconds


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


def send_all(messages: Mapping[Connection, bytes], may_go_on: Callable[[], bool]) -> bool:
    """Send each connection its message, all at the same time; whether all went out whole.

    A rank that does not read holds this up: then `may_go_on` is asked a few times a second, and no answers to
    it end this, with a message that is half out: the connection is of no more use.
    """
    frames = {connection: memoryview(_framed(data)) for connection, data in messages.items()}
    with ExitStack() as stack, selectors.DefaultSelector() as writable:
        for connection in frames:
            copy = stack.enter_context(socket.socket(fileno=os.dup(connection.fileno())))
            writable.register(copy, selectors.EVENT_WRITE, connection)
        while frames:
            ready = writable.select(_PATIENCE)
            if not ready and not may_go_on():
                return False
            for key, _ in ready:
                copy, connection = cast(socket.socket, key.fileobj), key.data
                sent = copy.send(frames[connection], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                frames[connection] = frames[connection][sent:]
                if not frames[connection]:
                    del frames[connection]
                    writable.unregister(copy)
    return True


def _framed(data: bytes) -> bytes:
    """As `Connection.send_bytes` puts it on the wire."""
    long = len(data) > 0x7FFFFFFF
    return (struct.pack("!iQ", -1, len(data)) if long else struct.pack("!i", len(data))) + data


@contextmanager
def interrupts_later() -> Iterator[list[int]]:
    """Have an interrupt wait until the end of the block; the list then has it."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
