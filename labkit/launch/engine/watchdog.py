"""Watches the ranks of a job and decides that it has failed: crash, error, deadlock, its time being up."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit import processes
from labkit.launch.failure.deadlock import is_stuck
from labkit.launch.failure.diagnose import Exit, RankFacts, diagnose
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import (
    CONTROL,
    MAX_LOG_BYTES,
    VERDICT,
    Request,
    end_path,
    log_path,
    records_path,
    stack_path,
    state_path,
    status_path,
)
from labkit.launch.handover.reserved import read_reserved, write_reserved
from labkit.record.agreement import find_disagreement
from labkit.record.state import (
    FAILED,
    FINISHED,
    IDLE,
    PHASES,
    STARTING,
    WAITING,
    ControlPage,
    State,
    StatePage,
)

_LOOK_EVERY = 0.02  # seconds between two looks, when nobody rings
QUIET = 1.0  # seconds without any event before ranks that all wait are compared
_CATCH_UP = 0.3  # seconds the other ranks get to reach the call in which one failed
_GRACE = 0.2  # seconds between SIGTERM and SIGKILL
_STACK_PATIENCE = 0.15


class Watchdog:
    """The agent calls `look` again and again. Once it decides, the ranks are diagnosed and ended.

    first: the number of its first rank, where a job has several agents.
    """

    def __init__(self, directory: Path, request: Request, first: int = 0) -> None:
        self.directory, self.request, self.first = directory, request, first
        self.verdict = ""
        self._control = ControlPage(directory / CONTROL)
        self._pages: dict[int, StatePage] = {}
        self._events = -1
        self._quiet_since = time.monotonic()
        self._next_slow_look = 0.0
        self._oom_kills = oom_kills()
        self._ears, self.bell = os.pipe()  # a rank writes to the bell when it has finished or failed

    def pause(self) -> None:
        """Let some time pass before the next look, or less when a rank rings."""
        if select.select([self._ears], [], [], _LOOK_EVERY)[0]:
            os.read(self._ears, 4096)

    def all_finished(self, ranks: int) -> bool:
        """Whether every rank has said that it is done."""
        return all(self._phase(self.first + index) == FINISHED for index in range(ranks))

    def look(self, pids: list[int]) -> bool:
        """Whether the job has failed; if so, its ranks have been ended and the diagnosis written."""
        reason = self._reason(pids)
        if reason:
            self._end(reason, pids)
        return bool(reason)

    def finished(self, pids: list[int]) -> None:
        """All ranks returned: write that down, or that their calls did not fit each other."""
        facts = [self._facts(rank, Exit(0, 0)) for rank in range(len(pids))]
        self._write_status(facts)
        diagnosis = Diagnosis("finished", "every rank finished")
        wrong = find_disagreement([records_path(self.directory, rank) for rank in range(len(pids))])
        if wrong:
            diagnosis = diagnose("disagreement", facts, self.request, wrong)
        self.verdict = diagnosis.verdict
        write_reserved(
            self.directory / VERDICT, {**diagnosis.to_json(), "reason": "disagreement" if wrong else ""}
        )

    def _reason(self, pids: list[int]) -> str:
        deadline, _, stop = self._control.read()
        if stop:
            return stop
        phases = [self._phase(rank) for rank in self._numbers(pids)]
        for phase, pid in zip(phases, pids, strict=True):
            if phase == FAILED or (phase != FINISHED and exit_of(pid) is not None):
                return "failed"
        now = time.monotonic()
        if deadline and now > deadline:
            return "deadline"
        if now > self._next_slow_look:
            self._next_slow_look = now + 0.05
            return self._slow_look(phases, now)
        return ""

    def _slow_look(self, phases: list[int], now: float) -> str:
        if any(_size(log_path(self.directory, rank)) > MAX_LOG_BYTES for rank in self._numbers(phases)):
            return "flood"
        events = sum(page.events() for page in self._pages.values())
        if events != self._events or not all(phase in (WAITING, FINISHED, IDLE) for phase in phases):
            self._events, self._quiet_since = events, now
        elif now - self._quiet_since > QUIET and WAITING in phases:
            self._quiet_since = now
            return "stuck" if self._is_stuck() else ""
        return ""

    def _is_stuck(self) -> bool:
        return is_stuck([self._pages[rank].read() for rank in sorted(self._pages)])

    def _numbers(self, ranks: Sequence[object]) -> range:
        """The numbers of these ranks, which are all that this agent has."""
        return range(self.first, self.first + len(ranks))

    def _phase(self, rank: int) -> int:
        page = self._pages.get(rank)
        if page is None:
            path = state_path(self.directory, rank)
            if _size(path) == 0:
                return STARTING
            page = self._pages[rank] = StatePage(path)
        return page.phase()

    # -- the end of a job that failed

    def _end(self, reason: str, pids: list[int]) -> None:
        if reason == "failed":
            self._let_others_catch_up(pids)
        exits = [self._with_memory(exit_of(pid)) for pid in pids]
        self._ask_for_stacks(pids, exits)
        facts = [self._facts(rank, ended) for rank, ended in zip(self._numbers(pids), exits, strict=True)]
        self._conclude(reason, facts, pids)

    def _conclude(self, reason: str, facts: list[RankFacts], pids: list[int]) -> None:
        """Say why, end the ranks, and write everything down."""
        timeout = self._control.read()[1]
        diagnosis = diagnose(reason, facts, replace(self.request, timeout=timeout))
        self.verdict = diagnosis.verdict
        processes.end(pids, _GRACE)
        self._write_status(facts)
        write_reserved(self.directory / VERDICT, {**diagnosis.to_json(), "reason": reason})

    def _with_memory(self, ended: Exit | None) -> Exit | None:
        """A SIGKILL while the system counted a kill for want of memory was that kill."""
        if ended is not None and ended.signal == signal.SIGKILL and oom_kills() > self._oom_kills:
            return replace(ended, out_of_memory=True)
        return ended

    def _let_others_catch_up(self, pids: list[int]) -> None:
        """When a rank died, or failed inside a call, what the others called is half of the story."""
        ends = [read_reserved(end_path(self.directory, rank)) for rank in self._numbers(pids)]
        died = any(end is None and exit_of(pid) for end, pid in zip(ends, pids, strict=True))
        if not died and not any(end and end.get("waiting") for end in ends):
            return
        self._settle(pids)

    def _settle(self, pids: list[int]) -> None:
        """Until each rank waits or has ended, or the time for that is up."""
        until = time.monotonic() + _CATCH_UP
        while time.monotonic() < until:
            settled = (WAITING, FINISHED, IDLE, FAILED)
            if all(self._phase(rank) in settled or exit_of(pid) for rank, pid in enumerate(pids, self.first)):
                return
            time.sleep(0.005)

    def _ask_for_stacks(self, pids: list[int], exits: list[Exit | None]) -> None:
        running = [rank for rank, ended in zip(self._numbers(pids), exits, strict=True) if ended is None]
        asked = [rank for rank in running if self._ready(rank)]
        before = {rank: _size(stack_path(self.directory, rank)) for rank in asked}
        for rank in asked:
            processes.send(pids[rank - self.first], signal.SIGUSR2)
        until = time.monotonic() + _STACK_PATIENCE
        while time.monotonic() < until and any(
            _size(stack_path(self.directory, rank)) == before[rank] for rank in asked
        ):
            time.sleep(0.003)

    def _ready(self, rank: int) -> bool:
        """Whether the rank has come far enough for SIGUSR2 to ask for its stack, not to end it."""
        phase = self._phase(rank)
        page = self._pages.get(rank)
        return page is not None and page.events() > 0 and phase not in (FAILED, FINISHED, IDLE)

    def _facts(self, rank: int, ended: Exit | None) -> RankFacts:
        self._phase(rank)
        page = self._pages.get(rank)
        state = page.read() if page else State(PHASES[STARTING], 0.0, 0, None, {}, {}, {})
        try:
            stack = stack_path(self.directory, rank).read_text(errors="replace")
        except OSError:
            stack = ""
        return RankFacts(rank, state, read_reserved(end_path(self.directory, rank)), ended, stack[-20000:])

    def _write_status(self, facts: list[RankFacts]) -> None:
        for fact in facts:
            try:
                write_reserved(status_path(self.directory, fact.rank), fact.to_json())
            except OSError:
                return  # a full disk: the verdict has room of its own


def exit_of(pid: int) -> Exit | None:
    """How a child ended, without reaping it; None while it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return Exit(0, 0)
    if found is None:
        return None
    return Exit(found.si_status, 0) if found.si_code == os.CLD_EXITED else Exit(0, found.si_status)


def oom_kills() -> int:
    """How many processes the system has killed for want of memory so far; containers' limits count."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
