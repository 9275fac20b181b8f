"""What labkit takes from inside torch's elastic agent, which starts a job's ranks."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs


def quieten_elastic() -> None:
    """Have torch's agent not log that ranks failed: each failure is told once, by the diagnosis.

    A new level is told to every logger of the process; so a fork should find it set.
    """
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    if logger.level != logging.ERROR:
        logger.setLevel(logging.ERROR)


class QuietAgent(LocalElasticAgent):
    """torch's elastic agent, with `look` in place of its own look at the workers, and without what a job here
    has no use for: logs (ranks write their own), metrics, and a wait for agents of other nodes."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec, _NoLogs(), start_method="fork")
        quieten_elastic()

    def look(self, pids: list[int]) -> RunResult:
        """How the workers with these process ids, in order of their ranks, are; called again and again."""
        raise NotImplementedError

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._pcontext is not None
        return self.look([pid for _, pid in sorted(self._pcontext.pids().items())])

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """torch's own asks the name server for this machine's full name ten times a job; nobody reads it."""
        return Event(f"torchelastic.worker.status.{state}", source=source)

    def _exit_barrier(self) -> None:
        """torch's own waits for the agents of other nodes; ours do so when they have reported."""


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
