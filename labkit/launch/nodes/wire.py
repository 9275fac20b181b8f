"""The connections between a notebook and a session's ranks on other machines: TCP, for who knows the key.

Both sides prove that they know it (HMAC) before anything else is said; what is said is not encrypted, as
between torch's own processes.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import psutil

NOTEBOOK = "notebook.json"  # where the notebook listens, and the key: readable by its user only
_PATIENCE = 5  # seconds for the other side to prove itself


@dataclass(frozen=True)
class Listener:
    """A listening socket of the notebook."""

    socket: socket.socket
    key: bytes

    def accept(self, seconds: float) -> Connection | None:
        """The next rank that knows the key; None when none came within that time, or a stranger did."""
        self.socket.settimeout(seconds)
        try:
            accepted, _ = self.socket.accept()
        except TimeoutError:
            return None
        return _proven(accepted, self.key, first=True)

    def close(self) -> None:
        self.socket.close()


def listen(directory: Path) -> Listener:
    """Listen on a port of the system's choice, and write down where for the ranks."""
    listener = socket.create_server(("0.0.0.0", 0), backlog=512)
    key = secrets.token_bytes(32)
    told = {"addresses": _addresses(), "port": listener.getsockname()[1], "key": key.hex()}
    descriptor = os.open(directory / NOTEBOOK, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(told, file)
    return Listener(listener, key)


def connect(directory: Path) -> Connection:
    """The rank's side. ConnectionError when the notebook cannot be reached from here."""
    told = json.loads((directory / NOTEBOOK).read_text())
    for address in told["addresses"]:
        try:
            plain = socket.create_connection((address, told["port"]), timeout=_PATIENCE)
        except OSError:
            continue
        connection = _proven(plain, bytes.fromhex(told["key"]), first=False)
        if connection is not None:
            return connection
    tried = ", ".join(told["addresses"])
    raise ConnectionError(f"the notebook does not answer at any of {tried}, port {told['port']}")


def _addresses() -> list[str]:
    """This machine's IPv4 addresses, the loopback last."""
    found = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET
    ]
    return sorted(found, key=lambda address: address.startswith("127."))


def _proven(plain: socket.socket, key: bytes, first: bool) -> Connection | None:
    """The connection once both sides have shown that they know the key; None when the other does not."""
    plain.settimeout(None)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        plain.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _PATIENCE, 0))
    connection = Connection(plain.detach())
    try:
        for prove in (
            (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
        ):
            prove(connection, key)
    except (OSError, EOFError, AuthenticationError):
        connection.close()
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as again:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            again.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 0))
    return connection
