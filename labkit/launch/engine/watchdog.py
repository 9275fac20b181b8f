"""Watches the ranks of a job and decides that it has failed: crash, error, deadlock, its time being up."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import replace
from pathlib import Path

from labkit import processes
from labkit.launch.engine.council import Council, write_verdict
from labkit.launch.engine.ranks import SETTLED, Ranks, exit_of
from labkit.launch.failure.diagnose import Exit, RankFacts, diagnose
from labkit.launch.handover.request import MAX_LOG_BYTES
from labkit.record.state import FINISHED, HOLD, WAITING, ControlPage

_LOOK_EVERY = 0.02  # seconds between two looks, when nobody rings
QUIET = 1.0  # seconds without any event before ranks that all wait are compared


class Watchdog:
    """The agent calls `look` again and again. Once it decides, the ranks are diagnosed and ended.

    ranks: those of this agent. control: what the notebook says. council: who else has a say.
    """

    def __init__(self, ranks: Ranks, control: ControlPage, council: Council) -> None:
        self.verdict = ""
        self._held = False  # whether the ranks are kept as they were when the job failed
        self._ranks, self._control, self._council = ranks, control, council
        self._events = -1
        self._quiet_since = time.monotonic()
        self._next_slow_look = 0.0
        self._oom_kills = oom_kills()
        self._ears, self.bell = os.pipe()  # a rank writes to the bell when it has finished or failed

    def pause(self) -> None:
        """Let some time pass before the next look, or less when a rank rings."""
        if select.select([self._ears], [], [], _LOOK_EVERY)[0]:
            os.read(self._ears, 4096)

    def look(self, pids: list[int]) -> bool:
        """Whether the job has failed; if so, its ranks have been ended and the diagnosis written."""
        reason = self._council.reason(self._reason(pids))
        if reason == HOLD:
            self._hold(pids)
        elif reason:
            self._end(reason, pids)
        return reason not in ("", HOLD)

    def all_finished(self) -> bool:
        """Whether every rank has said that it is done, and may be ended."""
        return all(phase == FINISHED for phase in self._ranks.phases()) and self._council.may_part()

    def finished(self) -> None:
        """All ranks returned, and have ended: write that down."""
        facts = self._ranks.facts([Exit(0, 0)] * len(self._ranks.numbers))
        self.verdict = self._council.finished(facts)

    def _reason(self, pids: list[int]) -> str:
        deadline, _, stop = self._control.read()
        if stop not in ("", HOLD):
            return stop
        if self._ranks.some_failed(pids):
            return "failed"
        now = time.monotonic()
        if deadline and now > deadline:
            return "deadline"
        if stop:
            return self._hold_or_part()
        if now > self._next_slow_look:
            self._next_slow_look = now + 0.05
            return self._slow_look(now)
        return ""

    def _slow_look(self, now: float) -> str:
        if self._ranks.longest_log() > MAX_LOG_BYTES:
            return "flood"
        phases, events = self._ranks.phases(), self._ranks.events()
        if events != self._events or not all(phase in SETTLED for phase in phases):
            self._events, self._quiet_since = events, now
        elif now - self._quiet_since > QUIET and WAITING in phases:
            self._quiet_since = now
            return "stuck" if self._council.stuck(self._ranks.states()) else ""
        return ""

    def _hold_or_part(self) -> str:
        """Why held ranks must end: one has, because the notebook hung up."""
        if FINISHED in self._ranks.phases():
            return "cancelled"
        return "" if self._held else HOLD

    def _hold(self, pids: list[int]) -> None:
        """Write down why the job failed, and let its ranks be."""
        self._held = True
        facts = self._evidence("failed", pids)
        write_verdict(self._ranks.directory, diagnose("failed", facts, 0.0), facts)

    def _end(self, reason: str, pids: list[int]) -> None:
        facts, timeout = self._evidence(reason, pids), self._control.read()[1]
        self.verdict = self._council.conclude(reason, facts, pids, timeout)

    def _evidence(self, reason: str, pids: list[int]) -> list[RankFacts]:
        if reason == "failed" and (self._council.overruled or self._ranks.some_stopped_in_a_call(pids)):
            self._ranks.settle(pids)
        exits = [self._with_memory(exit_of(pid)) for pid in pids]
        self._ranks.write_stacks(pids, exits)
        facts = self._ranks.facts(exits)
        return [
            replace(fact, stopped=fact.ended is None and processes.is_stopped(pid))
            for fact, pid in zip(facts, pids, strict=True)
        ]

    def _with_memory(self, ended: Exit | None) -> Exit | None:
        """A SIGKILL while the system counted a kill for want of memory was that kill."""
        if ended is not None and ended.signal == signal.SIGKILL and oom_kills() > self._oom_kills:
            return replace(ended, out_of_memory=True)
        return ended


def oom_kills() -> int:
    """How many processes the system has killed for want of memory so far; containers' limits count."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
