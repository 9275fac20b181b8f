"""The processes of a job over several nodes, as the notebook sees them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.launch.failure.diagnose import on_nodes
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.directory import remove
from labkit.launch.handover.request import Request
from labkit.launch.nodes import evidence
from labkit.launch.nodes.beats import Silence
from labkit.launch.nodes.files import Report, give_order, read_reports
from labkit.launch.nodes.steps import Step
from labkit.record.state import PHASES, STARTING, State

_ORDERLY = 8.0  # seconds the nodes get to end the job by themselves
_HARD = 60.0  # seconds Slurm gets to end it
_PARTING = 3.0  # seconds all nodes get to leave once one has ended the job
_GIVE_UP = 1.0  # and Slurm to end what did not leave
_PATIENCE = 30.0  # seconds after the timeout until the nodes are no longer trusted to keep it
_NEVER = float("inf")


class NodesRun:
    """A job whose ranks are spread over nodes. The nodes keep its time, from when they start."""

    def __init__(self, step: Step, directory: Path, request: Request) -> None:
        self.request, self.directory = request, directory
        self._step = step
        self._reports: dict[int, Report] = {}
        self._stopping = ""
        self._kill_at = self._hopeless_at = _NEVER
        self._next_look = 0.0
        self._over = False
        self._over_since = _NEVER
        self._gave_up = False
        self._ordering = threading.Lock()
        self._silence = Silence(directory, request.nodes)
        self._silent: list[str] = []

    @property
    def nodes(self) -> list[str]:
        names = self._names()
        if "" in names:
            self._next_look = 0.0  # the report may be newer than our last look
            names = self._names()
        return names

    def ended(self, timeout: float) -> Diagnosis | None:
        code = self._step.ended(timeout)
        found = self._verdict() if code is not None else self._forced_end(time.monotonic())
        self._over = found is not None
        return found

    def stop(self, reason: str) -> None:
        self._stopping = reason
        now = time.monotonic()
        self._kill_at, self._hopeless_at = now + _ORDERLY, now + _HARD
        if self._step.pending():
            self._step.kill()
        try:
            self._order(do="stop", reason=reason)
        except OSError:  # a full disk: no node hears of it
            self._kill_at = now

    def hold(self) -> None:
        """See `place.Run.hold`: not over nodes, whose agents end a job together."""

    def queued(self) -> bool:
        return self._step.pending()

    def standing(self) -> str:
        return str(self._step.state())

    def set_deadline(self, seconds: float) -> None:
        if not self._stopping:
            self._kill_at = time.monotonic() + seconds + _PATIENCE if seconds else _NEVER
        with contextlib.suppress(OSError):  # a full disk: no node hears of it, and the time is kept here
            self._order(do="deadline", seconds=seconds)

    def interrupt(self, pids: Mapping[int, int]) -> None:
        nodes, on_node = self.nodes, defaultdict(list)
        for rank, pid in pids.items():
            on_node[nodes[rank]].append(pid)
        self._order(do="interrupt", pids=on_node)

    def state(self, rank: int) -> State:
        """As its node has told it last, which is up to half a second ago."""
        for report in self._known().values():
            if rank in report.numbers and report.states:
                return report.states[rank - report.first]
        return State(PHASES[STARTING])

    def progress(self) -> list[tuple[float, float, str]]:
        found = [(0.0, 0.0, "")] * self.request.ranks
        for report in self._known().values():
            for rank, told in zip(report.numbers, report.progress, strict=False):
                found[rank] = told
        return found

    def clocks(self) -> list[float]:
        clocks = [0.0] * self.request.ranks
        for report in self._known().values():
            for rank in report.numbers:
                clocks[rank] = report.clock
        return clocks

    def abandon(self) -> None:
        """Its directory stays: it is the user's, and the only trace of a job that Slurm may run later."""

    def close(self) -> None:
        remove(self.directory)

    def _order(self, **order: Any) -> None:
        """Tell every node something, one thread at a time. OSError when there is no room for it."""
        with self._ordering:
            give_order(self.directory, **order)

    def _forced_end(self, now: float) -> Diagnosis | None:
        """The end of a job that does not end by itself: out of time, told to stop, or given up."""
        if self._kill_at == _NEVER and self.request.timeout and self._all_started():
            self._kill_at = now + self.request.timeout + _PATIENCE
        if now > self._kill_at:
            self._step.kill()
            self._kill_at = now + _ORDERLY
        if now > self._hopeless_at:
            words = f"Slurm did not end the job within {_HARD:g} s; squeue --me shows whether it runs on"
            return Diagnosis("infrastructure", words)
        return self._abandoned(now)

    def _abandoned(self, now: float) -> Diagnosis | None:
        """Give up nodes from which nothing is heard any more, some time after another has ended the job, or
        when others are still heard of.

        Slurm itself would wait until it is sure that the node is down, which takes minutes.
        """
        reports = self._known()
        if any(report.state == "ended" for report in reports.values()):
            self._over_since = min(self._over_since, now)
        elif silent := self._silence.look():
            self._silent = [reports[n].node for n in silent if n in reports and reports[n].state == "running"]
            if self._silent:  # the others wait for it, and cannot end the job in order
                self._over_since = min(self._over_since, now - _PARTING)
        if now > self._over_since + _PARTING and not self._gave_up:
            self._gave_up = True
            self._step.kill()
        if now <= self._over_since + _PARTING + _GIVE_UP:
            return None
        found = self._verdict()
        self._step.bury()
        return found

    def _verdict(self) -> Diagnosis:
        self._next_look = 0.0
        reports = self._known()
        known = self._stopping or self._gave_up or evidence.all_finished(reports, self.request)
        state = None if known else self._step.state_now()
        found = evidence.diagnose_nodes(
            self.directory, self.request, reports, self._stopping, state, self._silent
        )
        if found.verdict == "infrastructure" and (words := self._step.last_words()):
            found = evidence.with_words(found, words)
        return on_nodes(found, self.nodes)

    def _names(self) -> list[str]:
        names = [""] * self.request.ranks
        for report in self._known().values():
            for rank in report.numbers:
                names[rank] = report.node
        return names

    def _known(self) -> dict[int, Report]:
        now = time.monotonic()
        if not self._over and now > self._next_look:
            self._next_look = now + 0.2
            # a new one, for threads that go through the old
            self._reports = self._reports | read_reports(self.directory, self.request.nodes)
        return self._reports

    def _all_started(self) -> bool:
        reports = self._known()
        return len(reports) == self.request.nodes and all(r.state != "arrived" for r in reports.values())
