"""Runs one node's ranks: torch's elastic agent, a fork of the process that holds the nodes' store.

Two processes a node, because the store has threads, and ranks may only be forked from a process that has
none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

from labkit import processes
from labkit.launch.engine.agent import Agent, Settled
from labkit.launch.engine.gpu_lock import GpuLocks, device_names
from labkit.launch.engine.ranks import Ranks
from labkit.launch.engine.watchdog import Watchdog
from labkit.launch.engine.worker import run_rank
from labkit.launch.handover.request import Request
from labkit.launch.nodes.council import CouncilOfNodes
from labkit.launch.nodes.files import Report, control_path
from labkit.launch.nodes.meeting import Met, interface_of
from labkit.record.state import ControlPage

FAILED = 3  # exit status of a node whose job did not finish


def _has_met(met: Met, store: dist.Store) -> Settled:
    """The rendezvous as the agent sees it: it is over."""
    where = RendezvousStoreInfo(met.address, met.port)
    return Settled("labkit", RendezvousInfo(store, met.rank, met.nodes, where), use_agent_store=True)


def _take_gpus(locks: GpuLocks, request: Request) -> str:
    """Take those of this node's ranks, in which nodes are alike. "" when that worked; otherwise why not."""
    devices = request.devices[: request.ranks // request.nodes]
    try:
        return locks.take(device_names(devices, {**os.environ, **request.env}))
    except (OSError, ValueError) as error:
        return f"the GPUs of the ranks cannot be taken: {error}"


def run_node(directory: Path, report: Report, met: Met, address: str) -> bool:
    """Run this node's ranks to their end, in this process, which must be single-threaded; True when every
    rank of the job finished. Nothing of the job is left on the node then but what `processes.end_children`
    has killed and not seen go."""
    request = Request.read(directory)
    processes.adopt_orphans()
    ranks = request.ranks // request.nodes
    report = replace(report, first=met.rank * ranks, ranks=ranks, clock=time.time() - time.monotonic())
    locks = GpuLocks()
    if refused := _take_gpus(locks, request):
        replace(report, state="ended", reason=refused).write(directory)
        return False
    if interface := interface_of(address):
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    store = dist.PrefixStore("agents", dist.TCPStore(met.address, met.port, None, False))
    control = ControlPage(control_path(directory, report.number))
    own = Ranks(directory, ranks, report.first)
    council = CouncilOfNodes(directory, own, report, control, met, store)
    council.report("running")
    control.set_deadline(time.monotonic() + request.timeout if request.timeout else 0.0, request.timeout)
    watchdog = Watchdog(own, control, council)
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        fn=run_rank,
        args=(str(directory), os.getpid(), watchdog.bell),
        rdzv_handler=_has_met(met, store),
        max_restarts=0,
        monitor_interval=1e-4,
    )
    try:
        result: Any = Agent(spec, watchdog).run()
        return result is not None and not result.is_failed() and watchdog.verdict == "finished"
    finally:
        processes.end_children()
        council.leave()


def fork_node(directory: Path, report: Report, address: str) -> tuple[int, int]:
    """Fork the agent. Returns its pid, and the descriptor to which `tell` writes how the nodes met."""
    parent = os.getpid()
    ears, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ears)
        return pid, mouth
    code = FAILED
    try:
        os.close(mouth)
        processes.die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        told = b""
        while piece := os.read(ears, 4096):
            told += piece
        os.close(ears)
        if told:  # nothing: the nodes have not met
            code = 0 if run_node(directory, report, Met(**json.loads(told)), address) else FAILED
    except SignalException:
        pass  # Slurm ends the job, and says so itself
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def tell(mouth: int, met: Met) -> None:
    """Let the forked agent begin."""
    os.write(mouth, json.dumps(vars(met)).encode())
    os.close(mouth)
