"""A session whose ranks are on several nodes: a `Session` over TCP that sends orders instead of signals."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.notebook_names import Sender
from labkit.launch.nodes import evidence, wire
from labkit.launch.nodes.files import give_order
from labkit.launch.nodes.job import NodesJob
from labkit.launch.nodes.start import plan, submit
from labkit.launch.session import Session
from labkit.record.state import State

_LOOK_EVERY = 0.05


def serve(directory: str) -> None:
    """The function of the ranks' job: answer the notebook until it hangs up."""
    from labkit.launch.engine.session_rank import answer_on

    answer_on(wire.connect(Path(directory)), directory)


class NodesSession(Session):
    """Ranks that stay, spread over nodes."""

    _startup = 300.0  # seconds to find a place in the queue, to import torch, and to meet

    def __init__(
        self, ranks: int | None, nodes: int, backend: str | None = None, env: dict[str, str] | None = None
    ) -> None:
        self._request = plan(
            ranks, nodes, 0, backend, env or {}, True, target="labkit.launch.nodes.session:serve"
        )
        self.nodes = nodes
        self._prepare(self._request.ranks, self._request.backend, ())

    def start(self) -> None:
        """Start the ranks, if they do not run. Returns at once; the first cell waits for them."""
        if self._job is not None and not self._job.poll():
            return
        self._hang_up()
        self._sender = Sender()
        self._job = submit(self._request, b"", self._listen)

    def _listen(self, directory: Path) -> None:
        self._listener = wire.listen(directory)

    def _connect(self) -> None:
        self.start()
        self._nodes_job().wait_for_turn()
        super()._connect()

    def _accept(self) -> None:
        connection = self._listener.accept(_LOOK_EVERY)
        if connection is not None:
            hello = json.loads(connection.recv_bytes())
            self._connections[hello["rank"]] = connection
            self._pids[hello["rank"]] = hello["pid"]

    def _nodes_job(self) -> NodesJob:
        job = self._running_job()
        assert isinstance(job, NodesJob)
        return job

    def _set_deadline(self, seconds: float) -> None:
        give_order(self._running_job()._directory, do="deadline", seconds=seconds)

    def _interrupt(self, ranks: Sequence[int]) -> None:
        pids: dict[str, list[int]] = defaultdict(list)
        nodes = self._nodes_job().nodes
        for rank in ranks:
            pids[nodes[rank]].append(self._pids[rank])
        give_order(self._running_job()._directory, do="interrupt", pids=pids)

    def _state(self, rank: int, answer: dict[str, Any] | None = None) -> State:
        if answer is not None:
            told = answer["error"]["page"] if "error" in answer else {}
            return State.from_json(told) if told else _no_page("idle")
        told = self._nodes_job().states()[rank]
        return State.from_json(told) if told else _no_page("starting")

    def _located(self, diagnosis: Diagnosis) -> Diagnosis:
        return evidence.with_nodes(diagnosis, self._nodes_job().nodes)


def _no_page(phase: str) -> State:
    return State(phase, 0.0, 0, None, {}, {}, {})
