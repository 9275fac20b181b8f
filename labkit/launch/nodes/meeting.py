"""The nodes of a job find each other: torch's c10d rendezvous, at the address that Slurm has for the node."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousHandler
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

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


def meet(directory: Path, job: str, number: int, nodes: int, address: str) -> tuple[RendezvousHandler, Met]:
    """Wait for the other nodes. The handler keeps this node in the rendezvous: hold it until the job is over.

    number: of this node in Slurm's list, and so its rank here, whoever arrives first; 0 hosts the store.
    address: by which the others reach this node. It starts threads, and perhaps servers: no process that
    forks ranks may call it.
    """
    store = _store(directory, number, address)
    handler = DynamicRendezvousHandler.from_backend(
        job, store, C10dRendezvousBackend(store, job), nodes, nodes, local_addr=address,
        timeout=RendezvousTimeout(join=timedelta(seconds=_PATIENCE)),
    )  # fmt: skip
    info = handler.next_rendezvous()
    where = info.bootstrap_store_info
    return handler, Met(number, info.world_size, where.master_addr, int(where.master_port))


def _store(directory: Path, number: int, address: str) -> dist.TCPStore:
    patience = timedelta(seconds=_PATIENCE)
    if number == 0:
        store = dist.TCPStore(address, 0, None, True, patience, wait_for_workers=False)
        write_reserved(directory / MEETING, {"address": address, "port": store.port})
        return store
    until = time.monotonic() + _PATIENCE
    while (place := read_reserved(directory / MEETING)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"the first node did not open the rendezvous within {_PATIENCE:g} s")
        time.sleep(0.05)
    return dist.TCPStore(place["address"], place["port"], None, False, patience)


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
