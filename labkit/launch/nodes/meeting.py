"""The nodes of a job find each other: a store at the address that Slurm has for the first of them.

torch's own rendezvous keeps a pickled object in such a store, which is open to all who reach the port. Who
takes part is known here, so to wait for one another is all that is left of it.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch.distributed as dist

from labkit.launch.handover.reserved import read_reserved, write_reserved
from labkit.launch.nodes.files import MEETING

_PATIENCE = 120.0  # seconds for all nodes to import torch and arrive


@dataclass(frozen=True)
class Met:
    """What a node learns: its rank among the nodes, and where the store of the agents and ranks is."""

    rank: int
    nodes: int
    address: str
    port: int


def meet(directory: Path, number: int, nodes: int, address: str) -> tuple[dist.TCPStore, Met]:
    """Wait for the other nodes. Hold the store until the job is over: the first node's is the server.

    number: of this node in Slurm's list, and so its rank here, whoever arrives first; 0 hosts the store.
    address: by which the others reach this node. It starts threads: no process that forks ranks may call it.
    """
    store, where = _store(directory, number, address)
    if store.add("meeting/arrived", 1) == nodes:
        store.set("meeting/all", "here")
    try:
        store.wait(["meeting/all"], timedelta(seconds=_PATIENCE))
    except RuntimeError:
        here = store.add("meeting/arrived", 0)
        raise TimeoutError(f"{here} of {nodes} nodes came to {where} within {_PATIENCE:g} s") from None
    return store, Met(number, nodes, where, store.port)


def _store(directory: Path, number: int, address: str) -> tuple[dist.TCPStore, str]:
    """The store, and the address of the node that has it."""
    if number == 0:
        store = _serve(address)
        write_reserved(directory / MEETING, {"address": address, "port": store.port})
        return store, address
    until = time.monotonic() + _PATIENCE
    while (place := read_reserved(directory / MEETING)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"the first node did not open its store within {_PATIENCE:g} s")
        time.sleep(0.05)
    patience = timedelta(seconds=_PATIENCE)
    return dist.TCPStore(place["address"], place["port"], None, False, patience), place["address"]


def _serve(address: str) -> dist.TCPStore:
    """The server of a store, at this address of the machine alone where it is one of the network's."""
    listener = socket.create_server((_listening_address(address), 0), backlog=512)
    port = listener.getsockname()[1]
    patience = timedelta(seconds=_PATIENCE)
    return dist.TCPStore(
        address, port, None, True, patience, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _listening_address(address: str) -> str:
    """Where to listen for those who know this machine as `address`; "", everywhere, where it is none of this
    machine's own: a name may mean another address to other machines (Debian has 127.0.1.1 for the own one).
    """
    return socket.gethostbyname(address) if interface_of(address) else ""


def interface_of(address: str) -> str:
    """The network interface that has this address, which gloo and NCCL are to use; "" when none has it."""
    try:
        number = socket.gethostbyname(address)
    except OSError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == number for one in addresses):
            return name
    return ""
