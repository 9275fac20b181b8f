"""Runs one job: torch's own elastic agent with its workers forked, and a watchdog beside it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from labkit import processes
from labkit.launch.engine.watchdog import Watchdog
from labkit.launch.engine.worker import run_rank
from labkit.launch.handover.request import Request

_INHERITED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
              "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


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
    met = RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 0))
    return Settled(name, met, use_agent_store=False)


class _NoLogs(LogsSpecs):
    """Ranks write their own logs: the agent redirects and follows nothing, which would take threads."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nowhere = dict.fromkeys(range(len(envs)), "")
        for environment in envs.values():
            environment["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(stdouts=nowhere, stderrs=dict(nowhere), error_files=dict(nowhere))

    @property
    def root_log_dir(self) -> str:
        return os.devnull


class Agent(LocalElasticAgent):
    """torch's agent, which between two looks at its workers also lets the watchdog look."""

    def __init__(self, spec: WorkerSpec, watchdog: Watchdog) -> None:
        super().__init__(spec, _NoLogs(), start_method="fork", exit_barrier_timeout=5)
        self._watchdog = watchdog

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """torch's own asks the name server for this machine's full name ten times a job; nobody reads it."""
        return Event(f"torchelastic.worker.status.{state}", source=source)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._pcontext is not None
        self._watchdog.pause()
        pids = [pid for _, pid in sorted(self._pcontext.pids().items())]
        if self._watchdog.look(pids):
            return RunResult(state=WorkerState.FAILED)
        if self._watchdog.all_finished(len(pids)):
            # Each rank has written what it had to say and let go of its GPU. torch's way to end them, an
            # event that they wake up from one by one to leave through Python's shutdown, takes longer.
            processes.end_at_once(pids)
            self._watchdog.finished(pids)
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(range(len(pids)), 1))
        return RunResult(state=WorkerState.HEALTHY)


def scrub_environment() -> None:
    """Forget what an outer torchrun, Slurm step or earlier job told this process about ranks."""
    for name in list(os.environ):
        if name in _INHERITED or name.startswith("TORCHELASTIC_"):
            del os.environ[name]


def run_job(directory: Path) -> bool:
    """Run the job of `directory` to its end, in this process; True when every rank finished.

    The process must be single-threaded. When this returns, no process of the job is left, and the directory
    holds job.json (the verdict) and a status, log and record of each rank.
    """
    request = Request.read(directory)
    processes.adopt_orphans()
    watchdog = Watchdog(directory, request)
    spec = WorkerSpec(
        role="rank", local_world_size=request.ranks, fn=run_rank,
        args=(str(directory), os.getpid(), watchdog.bell), rdzv_handler=_one_node(directory.name),
        max_restarts=0, monitor_interval=1e-4,
    )  # fmt: skip
    try:
        result: Any = Agent(spec, watchdog).run()
        return result is not None and not result.is_failed() and watchdog.verdict == "finished"
    finally:
        processes.end_children()


def fork_job(directory: Path) -> int:
    """Run a job in a forked process with a session of its own, which ends with this one; returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            processes.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 0 if run_job(directory) else 3
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


__all__ = ["fork_job", "run_job", "scrub_environment", "time"]
