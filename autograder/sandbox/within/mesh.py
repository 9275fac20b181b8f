"""A network namespace for each rank of a job, and a cable between each two of them.

What two ranks say to each other goes over one cable and no other, so that the kernel's counters of its two
ends are what this pair has exchanged: by connections that are still open and by those that are closed, over
whatever protocol. No rank can reach, nor count for, another pair.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

CLONE_NEWNET = 0x40000000
LARGEST_PACKET = 65535  # bytes: as on a loopback, so that the cable costs what a loopback does
FIRST_DEVICE = 10
# Bytes that the kernel keeps for one socket, each way: the least, at first, the most. They are no process's.
BUFFERS = {"tcp_rmem": "4096 131072 262144", "tcp_wmem": "4096 16384 262144"}

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h
_NEW_LINK, _NEW_ADDRESS, _ERROR = 16, 20, 2
_REQUEST, _ACKNOWLEDGE, _EXCLUSIVE, _CREATE = 1, 4, 0x200, 0x400
_NAME, _MTU, _INFO, _SPECIFIC, _NAMESPACE = 3, 4, 18, 26, 28
_KIND, _DATA, _PEER, _GENERATE = 1, 2, 1, 8
_ADDRESS, _LOCAL = 1, 2
_UP = 1


@dataclass(frozen=True)
class Counted:
    """What the cables of a job have carried. sent: bytes from rank (row) to rank (column), headers included.
    resent: segments that TCP sent again, on all ranks.
    """

    sent: list[list[int]]
    resent: int


class Mesh:
    """The namespaces of a job's ranks. Use as a context manager, in a process that may make namespaces."""

    def __init__(self, ranks: int) -> None:
        """OSError where this host gives no more networks; none is left then."""
        self.ranks = ranks
        self.places: list[int] = []
        with contextlib.ExitStack() as undone:
            self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            undone.callback(os.close, self._home)
            for _ in range(ranks):
                self.places.append(self._new_place())
                undone.callback(os.close, self.places[-1])
            for low, high in combinations(range(ranks), 2):
                self._connect(low, high)
            with self.inside(0):
                self.listener = socket.create_server((address(0, ranks), 0), backlog=2 * ranks)
            undone.callback(self.listener.close)
            self._open = undone.pop_all()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextlib.contextmanager
    def inside(self, rank: int) -> Iterator[None]:
        """This process's network is the rank's, for a while."""
        enter(self.places[rank])
        try:
            yield
        finally:
            enter(self._home)

    def counted(self) -> Counted:
        """What has been carried so far."""
        sent, resent = [], 0
        for rank in range(self.ranks):
            with self.inside(rank):
                by_device = _bytes_sent(Path("/proc/self/net/dev").read_text())
                resent += _segments_resent(Path("/proc/self/net/snmp").read_text())
            sent.append([by_device.get(device(other), 0) for other in range(self.ranks)])
        return Counted(sent, resent)

    def _new_place(self) -> int:
        _call("unshare", CLONE_NEWNET)
        try:
            with _netlink() as link:
                _ask(link, _NEW_LINK, _link_header(1, _UP))  # the loopback, which a rank has for itself
            for name, sizes in BUFFERS.items():
                Path("/proc/sys/net/ipv4", name).write_text(sizes)
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            enter(self._home)

    def _connect(self, low: int, high: int) -> None:
        """A cable with an end in each of two ranks' places."""
        size = _attribute(_MTU, struct.pack("=I", LARGEST_PACKET))
        there = _attribute(_NAME, device(low).encode() + b"\0") + size
        there += _attribute(_NAMESPACE, struct.pack("=i", self.places[high]))
        peer = _attribute(_PEER, _link_header(FIRST_DEVICE + low) + there)
        kind = _attribute(_KIND, b"veth\0") + _attribute(_DATA, peer)
        here = _attribute(_NAME, device(high).encode() + b"\0") + size + _attribute(_INFO, kind)
        with self.inside(low), _netlink() as link:
            _ask(link, _NEW_LINK, _link_header(FIRST_DEVICE + high) + here, _CREATE | _EXCLUSIVE)
        for own, other in ((low, high), (high, low)):
            with self.inside(own), _netlink() as link:
                self._set_up(link, own, other)

    def _set_up(self, link: socket.socket, own: int, other: int) -> None:
        """Give one end its address, and let it be used."""
        if os.path.exists("/proc/self/net/if_inet6"):  # not where the kernel has no IPv6
            _ask(link, _NEW_LINK, _link_header(FIRST_DEVICE + other) + _without_ipv6())
        _ask(link, _NEW_LINK, _link_header(FIRST_DEVICE + other, _UP))
        _ask(link, _NEW_ADDRESS, self._addresses(own, other), _CREATE | _EXCLUSIVE)

    def _addresses(self, own: int, other: int) -> bytes:
        """The address of one end, and who is at the other: the kernel makes the route itself."""
        header = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, FIRST_DEVICE + other)
        ends = ((_LOCAL, own), (_ADDRESS, other))
        return header + b"".join(
            _attribute(kind, socket.inet_aton(address(rank, self.ranks))) for kind, rank in ends
        )


def address(rank: int, ranks: int) -> str:
    """Where a rank is found by the others."""
    return f"10.9.{rank // 250}.{1 + rank % 250}" if ranks > 1 else "127.0.0.1"


def device(other: int) -> str:
    """A rank's end of the cable to another one."""
    return f"to-rank{other}"


def own_device(rank: int, ranks: int) -> str:
    """A device that has the rank's address."""
    return device(1 if rank == 0 else 0) if ranks > 1 else "lo"


def enter(place: int) -> None:
    """Make the network of an open namespace this process's own."""
    _call("setns", place, CLONE_NEWNET)


def _bytes_sent(devices: str) -> dict[str, int]:
    """Device -> bytes sent, from the text of /proc/net/dev."""
    rows = (line.partition(":") for line in devices.splitlines()[2:])
    return {name.strip(): int(counters.split()[8]) for name, _, counters in rows}


def _segments_resent(protocols: str) -> int:
    names, values = (line.split() for line in protocols.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _netlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)


def _ask(link: socket.socket, kind: int, body: bytes, flags: int = 0) -> None:
    """One request to the kernel; OSError with its answer when it refuses."""
    flags |= _REQUEST | _ACKNOWLEDGE
    link.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    answer = link.recv(8192)
    error = struct.unpack_from("=i", answer, 16)[0] if struct.unpack_from("=H", answer, 4)[0] == _ERROR else 0
    if error:
        raise OSError(-error, f"the network of the ranks: {os.strerror(-error)}")


def _link_header(index: int, state: int = 0) -> bytes:
    """struct ifinfomsg: the device with this number, and whether it is up."""
    return struct.pack("=BxHiII", 0, 0, index, state, _UP)


def _without_ipv6() -> bytes:
    """No address of its own accord: nothing is sent that no rank has sent."""
    none = _attribute(_GENERATE, struct.pack("=B", 1))
    return _attribute(_SPECIFIC, _attribute(socket.AF_INET6, none))


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)
