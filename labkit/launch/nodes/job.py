"""A job over several nodes, as the notebook sees it: a `Job` that knows nodes and its place in the queue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import Request
from labkit.launch.job import Job, Watcher
from labkit.launch.nodes import evidence
from labkit.launch.nodes.beats import Silence
from labkit.launch.nodes.files import Report, give_order, read_reports
from labkit.launch.nodes.show import QueueLine
from labkit.launch.nodes.steps import Step

_ORDERLY = 8.0  # seconds the nodes get to end the job by themselves
_HARD = 60.0  # seconds Slurm gets to end it
_PARTING = 3.0  # seconds all nodes get to leave once one has ended the job
_GIVE_UP = 1.0  # and Slurm to end what did not leave
_PATIENCE = 30.0  # seconds after the timeout until the nodes are no longer trusted to keep it


class NodesJob(Job):
    """A `Job` whose ranks are spread over nodes. While it waits for them, `state()` says where it stands."""

    def __init__(self, step: Step, directory: Path, request: Request) -> None:
        super().__init__(step, directory, request)  # type: ignore[arg-type]
        self._step = step
        self._reports: dict[int, Report] = {}
        self._stopping = ""
        self._began = 0.0
        self._deadline = float("inf")  # the nodes keep the time, from when they start
        self._next_look = 0.0
        self._over_since = float("inf")
        self._gave_up = False
        self._silence = Silence(directory, request.nodes)
        self._silent: list[str] = []

    @property
    def nodes(self) -> list[str]:
        """The node of each rank; "" as long as that is not known."""
        names = self._names()
        if "" in names:
            self._next_look = 0.0  # the report may be newer than our last look
            names = self._names()
        return names

    def _names(self) -> list[str]:
        names = [""] * self.ranks
        for report in self._known().values():
            for rank in report.numbers:
                names[rank] = report.node
        return names

    def state(self) -> str:
        """'waiting, place 2 in the queue (Resources)', 'running on n[1-2]', 'finished', 'failed: error'."""
        if self.done:
            return "finished" if self.error is None else f"failed: {self.error.verdict}"
        return str(self._step.state())

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank, as `labkit.progress` set it; zeros where it did not."""
        found = [(0.0, 0.0, "")] * self.ranks
        for report in {} if self.done else self._known():
            told = self._reports[report]
            for rank, (done, total, label) in zip(told.numbers, told.progress, strict=False):
                found[rank] = (done, total, label)
        return found

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether the job has ended; waits up to `timeout` seconds for it. Raises nothing."""
        if not self.done and self._deadline == float("inf") and self._request.timeout and self._all_started():
            self._deadline = time.monotonic() + self._request.timeout + _PATIENCE
        return super().poll(timeout) or self._abandoned()

    def _abandoned(self) -> bool:
        """Give up nodes from which nothing is heard any more, some time after another has ended the job, or
        when others are still heard of.

        Slurm itself would wait until it is sure that the node is down, which takes minutes.
        """
        now = time.monotonic()
        reports = self._known()
        if any(report.state == "ended" for report in reports.values()):
            self._over_since = min(self._over_since, now)
        elif not self.done and (silent := self._silence.look()):
            self._silent = [reports[n].node for n in silent if n in reports and reports[n].state == "running"]
            if self._silent:  # the others wait for it, and cannot end the job in order
                self._over_since = min(self._over_since, now - _PARTING)
        if now > self._over_since + _PARTING and not self._gave_up:
            self._gave_up = True
            self._step.kill(self._directory)
        if now > self._over_since + _PARTING + _GIVE_UP:
            self._collect(self._verdict(-1))
            self._step.bury()
        return self.done

    def wait(self, watch: Watcher | None = None) -> Job:
        """Wait until every rank has finished, first for its turn in the queue."""
        if watch is not None:
            self.wait_for_turn()
        return super().wait(watch)

    def wait_for_turn(self) -> None:
        """Wait in Slurm's queue, and show the place there. An interrupt cancels the job."""
        line = QueueLine()
        try:
            while self._step.pending() and not self.poll(0.1):
                line.show(self._step.state())
        except KeyboardInterrupt:
            self._stop("interrupted")
        line.close()

    def states(self) -> list[dict[str, Any]]:
        """The state page of each rank as its node has told it last, which is up to half a second ago."""
        found: list[dict[str, Any]] = [{}] * self.ranks
        for report in self._known().values():
            for rank, state in zip(report.numbers, report.states, strict=False):
                found[rank] = state
        return found

    def _known(self) -> dict[int, Report]:
        now = time.monotonic()
        if not self.done and now > self._next_look:
            self._next_look = now + 0.2
            self._reports.update(read_reports(self._directory, self._request.nodes))
        return self._reports

    def _all_started(self) -> bool:
        reports = self._known()
        return len(reports) == self._request.nodes and all(r.state != "arrived" for r in reports.values())

    def _stop(self, reason: str) -> None:
        if self.done:
            return
        self._stopping = reason
        if self._step.pending():
            self._step.kill(self._directory)
        give_order(self._directory, do="stop", reason=reason)
        begun = time.monotonic()
        kill_at = begun + _ORDERLY
        while not self.poll(0.05):
            now = time.monotonic()
            if now > kill_at:
                self._step.kill(self._directory)
                kill_at = now + _ORDERLY
            if now > begun + _HARD:
                words = f"Slurm did not end the job within {_HARD:g} s; squeue --me shows whether it runs on"
                self._collect(Diagnosis("infrastructure", words))
                return

    def _verdict(self, code: int) -> Diagnosis:
        self._next_look = 0.0
        self._known()
        state = None if self._stopping or self._gave_up else self._step.state_now()
        found = evidence.diagnose_nodes(
            self._directory, self._request, self._reports, self._stopping, state, self._silent
        )
        if found.verdict == "infrastructure" and (words := self._step.last_words()):
            found = evidence.with_words(found, words)
        return evidence.with_nodes(found, self.nodes)

    def _clocks(self) -> list[float]:
        clocks = [0.0] * self.ranks
        for report in self._reports.values():
            for rank in report.numbers:
                clocks[rank] = report.clock
        return clocks

    def __repr__(self) -> str:
        text = super().__repr__()
        if not self.done:
            return text.replace("running", self.state(), 1)
        return text.replace(" ranks", f" ranks of {self._request.nodes} nodes", 1)
