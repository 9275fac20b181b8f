"""The watchdog of one node: looks after its ranks, tells the other nodes why a job ends, and hears it."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from labkit import processes
from labkit.launch.engine.watchdog import QUIET, Watchdog
from labkit.launch.failure.deadlock import is_stuck
from labkit.launch.failure.diagnose import Exit, RankFacts
from labkit.launch.handover.request import Request
from labkit.launch.nodes.files import Report, control_path
from labkit.launch.nodes.meeting import Met
from labkit.record.state import FINISHED, IDLE, WAITING, ControlPage, State

_HEAR_EVERY = 0.05  # seconds between two questions to the store
_BEAT_EVERY = 1.0
_LOST_AFTER = 20.0  # seconds without a beat after which a node is given up
_GATHER = 1.0  # seconds the nodes wait for each other's evidence before they end their ranks
_LEAVE = 2.0
_GRACE = 0.2
_GONE = RuntimeError  # what torch's store raises when its server is not there any more


class NodeWatchdog(Watchdog):
    """A `Watchdog` for the ranks from `report.first` on. The notebook makes the diagnosis, from all nodes'
    evidence."""

    def __init__(
        self, directory: Path, request: Request, report: Report, met: Met, store: dist.Store
    ) -> None:
        super().__init__(directory, request, report.first)
        self._control.close()
        self._control = ControlPage(control_path(directory, report.number))
        self._report, self._met, self._store = report, met, store
        self._told = ""  # why another node ended the job
        self._next_talk = self._next_beat = self._next_report = 0.0
        self._beats: dict[int, tuple[int, float]] = {}
        self._still: tuple[int, float] = (-1, 0.0)  # events, and since when there were no more
        self._published = False
        self._suspicion: tuple[Any, float] = (None, 0.0)
        self._local_done = False

    # -- what the agent asks

    def all_finished(self, ranks: int) -> bool:
        """Whether every rank of every node has: until then none is ended, as others may still talk to it."""
        if not super().all_finished(ranks):
            return False
        with contextlib.suppress(_GONE):
            if not self._local_done:
                self._local_done = True
                self._store.add("finished", 1)
            return self._store.add("finished", 0) >= self._met.nodes
        return False

    def finished(self, pids: list[int]) -> None:
        self._write_status([self._facts(rank, Exit(0, 0)) for rank in self._numbers(pids)])
        self.verdict = "finished"
        self.report("finished")

    def report(self, state: str, reason: str = "") -> None:
        """Write down how this node is."""
        pages = [self._pages.get(rank) for rank in self._report.numbers]
        self._report = replace(
            self._report, state=state, reason=reason, timeout=self._control.read()[1],
            states=[page.read().to_json() if page else {} for page in pages],
            progress=[page.progress() if page else (0.0, 0.0, "") for page in pages],
        )  # fmt: skip
        self._report.write(self.directory)

    def leave(self) -> None:
        """Wait for the other nodes to be done too: when one exits early, srun ends the others at once."""
        self._together("left", _LEAVE)

    # -- why the job ends

    def _reason(self, pids: list[int]) -> str:
        own = super()._reason(pids)
        now = time.monotonic()
        if not own and now < self._next_talk:
            return ""
        self._next_talk = now + _HEAR_EVERY
        try:
            if own:
                self._store.compare_set("stop", "", own)
                return own
            return self._talk(now)
        except _GONE:
            return own or "lost"

    def _talk(self, now: float) -> str:
        """Say that this node is alive, how it is, and hear whether another ended the job."""
        if self._store.check(["stop"]):
            self._told = self._store.get("stop").decode()
            return self._told
        if now > self._next_report:
            self._next_report = now + 0.5
            self.report("running")
        if now > self._next_beat:
            self._next_beat = now + _BEAT_EVERY
            self._store.add(f"beat/{self._met.rank}", 1)
            if self._met.rank == 0 and self._somebody_lost(now):
                self._store.compare_set("stop", "", "lost")
                return "lost"
        self._publish_stillness(now)
        if self._met.rank == 0 and self._published and self._all_stuck(now):
            self._store.compare_set("stop", "", "stuck")
            return "stuck"
        return ""

    def _somebody_lost(self, now: float) -> bool:
        for node in range(1, self._met.nodes):
            count = self._store.add(f"beat/{node}", 0)
            if count != self._beats.get(node, (-1, 0.0))[0]:
                self._beats[node] = (count, now)
        return any(now - since > _LOST_AFTER for _, since in self._beats.values())

    # -- a deadlock over several nodes: each publishes its ranks' states once nothing happens, one compares

    def _is_stuck(self) -> bool:
        return False  # its own ranks alone do not say

    def _publish_stillness(self, now: float) -> None:
        phases = [self._phase(rank) for rank in self._report.numbers]
        events = sum(page.events() for page in self._pages.values())
        settled = all(phase in (WAITING, FINISHED, IDLE) for phase in phases)
        if not settled or events != self._still[0]:
            self._still = (events, now)
            if self._published:
                self._store.set(self._still_key(self._met.rank), "")
                self._published = False
        elif not self._published and now - self._still[1] > QUIET:
            states = [self._pages[rank].read().to_json() for rank in self._report.numbers]
            told = {"events": events, "first": self._report.first, "states": states}
            self._store.set(self._still_key(self._met.rank), json.dumps(told))
            self._published = True

    def _all_stuck(self, now: float) -> bool:
        keys = [self._still_key(node) for node in range(self._met.nodes)]
        if not all(self._store.check([key]) for key in keys):
            return False
        raw = [self._store.get(key) for key in keys]
        if not all(raw):
            return False
        told = sorted((json.loads(one) for one in raw), key=lambda one: one["first"])
        token = [one["events"] for one in told]
        if token != self._suspicion[0]:  # look twice: the states were not read at the same instant
            self._suspicion = (token, now)
            return False
        states = [State.from_json(state) for one in told for state in one["states"]]
        return now - self._suspicion[1] > QUIET / 2 and is_stuck(states)

    @staticmethod
    def _still_key(node: int) -> str:
        return f"still/{node}"

    # -- the end of a job that failed

    def _let_others_catch_up(self, pids: list[int]) -> None:
        if self._told:
            self._settle(pids)
        else:
            super()._let_others_catch_up(pids)

    def _conclude(self, reason: str, facts: list[RankFacts], pids: list[int]) -> None:
        """Leave this node's evidence, and end its ranks when the others have theirs too."""
        self.verdict = reason
        self._write_status([self._on_the_clock(fact) for fact in facts])
        self._together("gathered", _GATHER)
        processes.end(pids, _GRACE)
        self.report("ended", reason)

    def _on_the_clock(self, fact: RankFacts) -> RankFacts:
        if not fact.end or "time" not in fact.end:
            return fact
        return replace(fact, end={**fact.end, "time": fact.end["time"] + self._report.clock})

    def _together(self, what: str, seconds: float) -> None:
        """Wait until all nodes have come this far, or the time is up."""
        until = time.monotonic() + seconds
        with contextlib.suppress(_GONE):
            count = self._store.add(what, 1)
            while count < self._met.nodes and time.monotonic() < until:
                time.sleep(0.02)
                count = self._store.add(what, 0)
