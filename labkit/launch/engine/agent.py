"""Runs one job: torch's own elastic agent with its workers forked, and a watchdog beside it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from labkit import processes
from labkit.launch.engine.begun import not_begun
from labkit.launch.engine.council import CouncilOfOne
from labkit.launch.engine.ranks import Ranks
from labkit.launch.engine.targets import named
from labkit.launch.engine.watchdog import Watchdog
from labkit.launch.handover.directory import remove_stale
from labkit.launch.handover.request import CONTROL, VERDICT, Request
from labkit.launch.handover.reserved import read_reserved, write_reserved
from labkit.record.state import ControlPage
from labkit.torch_private_elastic import QuietAgent, quieten_elastic


class Settled(RendezvousHandler):
    """A rendezvous that is over: who takes part is known, and nobody else will come.

    use_agent_store: whether the ranks may use the store of `met` too.
    """

    def __init__(self, name: str, met: RendezvousInfo, use_agent_store: bool) -> None:
        self._name, self._met, self._use_agent_store = name, met, use_agent_store

    def get_backend(self) -> str:
        return "settled"

    def next_rendezvous(self) -> RendezvousInfo:
        return self._met

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._name

    def shutdown(self) -> bool:
        return True

    @property
    def use_agent_store(self) -> bool:
        return self._use_agent_store


def _one_node(name: str) -> Settled:
    """For a job on one machine: there is nobody to wait for, and nothing listens on a port."""
    where = RendezvousStoreInfo("127.0.0.1", _free_port())
    return Settled(name, RendezvousInfo(dist.HashStore(), 0, 1, where), use_agent_store=False)


def _free_port() -> int:
    """For MASTER_PORT: the ranks' own process group needs none, but one that their code makes anew may."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Agent(QuietAgent):
    """torch's agent, which between two looks at its workers also lets the watchdog look."""

    def __init__(self, spec: WorkerSpec, watchdog: Watchdog) -> None:
        super().__init__(spec)
        self._watchdog = watchdog

    def look(self, pids: list[int]) -> RunResult:
        """Until the watchdog has ended them, or all have finished."""
        self._watchdog.pause()
        if self._watchdog.look(pids):
            return RunResult(state=WorkerState.FAILED)
        if self._watchdog.all_finished():
            # Each rank has written what it had to say and let go of its GPU. torch's way to end them, an
            # event that they wake up from one by one to leave through Python's shutdown, takes longer.
            processes.end_at_once(pids)
            self._watchdog.finished()
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(range(len(pids)), 1))
        return RunResult(state=WorkerState.HEALTHY)


def run_job(directory: Path) -> bool:
    """Run the job of `directory` to its end, in this process; True when every rank finished.

    The process must be single-threaded. When this returns, no process of the job is left but what
    `processes.end_children` has killed and not seen go: the engine waits for that. The directory holds
    job.json (the verdict) and a status, log and record of each rank.
    """
    request = Request.read(directory)
    processes.adopt_orphans()
    ranks = Ranks(directory, request.ranks)
    watchdog = Watchdog(ranks, ControlPage(directory / CONTROL), CouncilOfOne(directory))
    spec = WorkerSpec(
        role="rank",
        local_world_size=request.ranks,
        fn=named(request.rank),
        args=(str(directory), os.getpid(), watchdog.bell),
        rdzv_handler=_one_node(directory.name),
        max_restarts=0,
        monitor_interval=1e-4,
    )
    try:
        result: Any = Agent(spec, watchdog).run()
        return result is not None and not result.is_failed() and watchdog.verdict == "finished"
    finally:
        launchers = any(processes.is_alive(pid) for pid in processes.children())  # of ranks that launched
        processes.end_children()
        if launchers:
            remove_stale()


def fork_job(directory: Path, let_go: Callable[[], object] = lambda: None) -> int:
    """Run a job in a forked process with a session of its own, which ends with this one; returns its pid.

    let_go: called in that process, to close what it should not have of this one's. OSError when there cannot
    be another process.
    """
    quieten_elastic()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            processes.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            let_go()
            code = 0 if run_job(directory) else 3
        except BaseException as error:
            traceback.print_exc()
            if read_reserved(directory / VERDICT) is None:
                write_reserved(directory / VERDICT, not_begun(error))
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid
