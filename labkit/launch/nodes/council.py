"""The agents of several nodes: each tells the others why a job ends, and hears it, through torch's store."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from labkit import processes
from labkit.launch.engine.council import GRACE
from labkit.launch.engine.facts import write_facts
from labkit.launch.engine.ranks import SETTLED, Ranks
from labkit.launch.engine.watchdog import QUIET
from labkit.launch.failure.deadlock import is_stuck
from labkit.launch.failure.diagnose import RankFacts
from labkit.launch.nodes.files import Report
from labkit.launch.nodes.meeting import Met
from labkit.record.state import ControlPage, State

_HEAR_EVERY = 0.05  # seconds between two questions to the store
_BEAT_EVERY = 1.0
_REPORT_EVERY = 0.5
_LOST_AFTER = 20.0  # seconds without a beat after which a node is given up
_GATHER = 1.0  # seconds the nodes wait for each other's evidence before they end their ranks
_LEAVE = 2.0
_GONE = RuntimeError  # what torch's store raises when its server is not there any more


class CouncilOfNodes:
    """One agent among those of several nodes. The notebook makes the diagnosis, from all nodes' evidence.

    report: of this node, kept up to date in `directory`. met, store: how to reach the others.
    """

    def __init__(
        self, directory: Path, ranks: Ranks, report: Report, control: ControlPage, met: Met, store: dist.Store
    ) -> None:
        self._directory, self._ranks, self._control = directory, ranks, control
        self._report, self._met, self._store = report, met, store
        self._next_talk = self._next_beat = self._next_report = 0.0
        self._beats: dict[int, tuple[int, float]] = {}
        self._stillness = _Stillness(ranks, met, store)
        self._done = False
        self.overruled = False

    def may_part(self) -> bool:
        """Whether the ranks of every node have finished: until then others may talk to those of this node."""
        with contextlib.suppress(_GONE):
            if not self._done:
                self._done = True
                self._store.add("finished", 1)
            return self._store.add("finished", 0) >= self._met.nodes
        return False

    def finished(self, facts: list[RankFacts]) -> str:
        write_facts(self._directory, facts)
        self.report("finished")
        return "finished"

    def report(self, state: str, reason: str = "") -> None:
        """Write down how this node is."""
        self._report = replace(
            self._report,
            state=state,
            reason=reason,
            timeout=self._control.read()[1],
            states=[replace(state, recent=()) for state in self._ranks.states()],
            progress=self._ranks.progress(),
        )
        self._report.write(self._directory)

    def leave(self) -> None:
        """Wait for the other nodes to be done too: when one exits early, srun ends the others at once."""
        self._together("left", _LEAVE)

    def reason(self, own: str) -> str:
        """Our own, why another node ended the job, that one was lost, or that all are stuck together."""
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

    def stuck(self, states: Sequence[State]) -> bool:
        return False  # one node's ranks alone do not say: see `_Stillness`

    def conclude(self, reason: str, facts: list[RankFacts], pids: list[int], timeout: float) -> str:
        """Leave this node's evidence, and end its ranks when the others have theirs too."""
        write_facts(self._directory, [self._on_the_clock(fact) for fact in facts])
        self._together("gathered", _GATHER)
        processes.end(pids, GRACE)
        self.report("ended", reason)
        return reason

    def _talk(self, now: float) -> str:
        """Say that this node is alive, how it is, and hear whether another ended the job."""
        if self._store.check(["stop"]):
            self.overruled = True
            return self._store.get("stop").decode()
        if now > self._next_report:
            self._next_report = now + _REPORT_EVERY
            self.report("running")
        reason = ""
        if now > self._next_beat:
            self._next_beat = now + _BEAT_EVERY
            self._store.add(f"beat/{self._met.rank}", 1)
            reason = "lost" if self._met.rank == 0 and self._somebody_lost(now) else ""
        if not reason and self._stillness.look(now):
            reason = "stuck"
        if reason:
            self._store.compare_set("stop", "", reason)
        return reason

    def _somebody_lost(self, now: float) -> bool:
        for node in range(1, self._met.nodes):
            count = self._store.add(f"beat/{node}", 0)
            if count != self._beats.get(node, (-1, 0.0))[0]:
                self._beats[node] = (count, now)
        return any(now - since > _LOST_AFTER for _, since in self._beats.values())

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


class _Stillness:
    """A deadlock over several nodes: each publishes its ranks' states once nothing happens, one compares."""

    def __init__(self, ranks: Ranks, met: Met, store: dist.Store) -> None:
        self._ranks, self._met, self._store = ranks, met, store
        self._still: tuple[int, float] = (-1, 0.0)  # events, and since when there were no more
        self._published = False
        self._suspicion: tuple[Any, float] = (None, 0.0)

    def look(self, now: float) -> bool:
        """Whether this is the node that compares, and it finds that no rank anywhere can go on."""
        self._publish(now)
        return self._met.rank == 0 and self._published and self._all_stuck(now)

    def _publish(self, now: float) -> None:
        phases, events = self._ranks.phases(), self._ranks.events()
        if not all(phase in SETTLED for phase in phases) or events != self._still[0]:
            self._still = (events, now)
            if self._published:
                self._store.set(_key(self._met.rank), "")
                self._published = False
        elif not self._published and now - self._still[1] > QUIET:
            states = msgspec.to_builtins(self._ranks.states(), str_keys=True)
            told = {"events": events, "first": self._ranks.numbers[0], "states": states}
            self._store.set(_key(self._met.rank), json.dumps(told))
            self._published = True

    def _all_stuck(self, now: float) -> bool:
        keys = [_key(node) for node in range(self._met.nodes)]
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
        states = [msgspec.convert(state, State, str_keys=True) for one in told for state in one["states"]]
        return now - self._suspicion[1] > QUIET / 2 and is_stuck(states)


def _key(node: int) -> str:
    return f"still/{node}"
