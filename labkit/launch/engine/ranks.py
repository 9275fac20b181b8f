"""The ranks that one agent looks after: what their pages, files and processes say of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from labkit import processes
from labkit.launch.failure.diagnose import Exit, RankFacts
from labkit.launch.handover.request import end_path, log_path, stack_path, state_path
from labkit.launch.handover.reserved import read_reserved
from labkit.record.state import FAILED, FINISHED, IDLE, PHASES, STARTING, WAITING, State, StatePage

_CATCH_UP = 0.3  # seconds the other ranks get to reach the call in which one failed
_STACK_PATIENCE = 0.5  # seconds; a rank that runs writes at once, on a busy machine when it has its turn
SETTLED = (WAITING, FINISHED, IDLE)  # phases in which nothing happens until another rank does something


class Ranks:
    """`count` ranks of the job in `directory`, from number `first` on. Lists of pids are in their order."""

    def __init__(self, directory: Path, count: int, first: int = 0) -> None:
        self.directory = directory
        self.numbers = range(first, first + count)
        self._pages: dict[int, StatePage] = {}

    def phase(self, rank: int) -> int:
        """One of the phases of `labkit.record.state`."""
        page = self._pages.get(rank)
        if page is None:
            path = state_path(self.directory, rank)
            if _size(path) == 0:
                return STARTING
            page = self._pages[rank] = StatePage(path)
        return page.phase()

    def phases(self) -> list[int]:
        """The phase of each rank."""
        return [self.phase(rank) for rank in self.numbers]

    def events(self) -> int:
        """Grows whenever something happens on a rank."""
        return sum(page.events() for page in self._pages.values())

    def states(self) -> list[State]:
        """What each rank's page says; of a rank that has none yet, that it is starting."""
        return [self._state(rank) for rank in self.numbers]

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank; zeros where it told nothing."""
        pages = [self._pages.get(rank) for rank in self.numbers]
        return [page.progress() if page else (0.0, 0.0, "") for page in pages]

    def longest_log(self) -> int:
        """Bytes that the loudest rank has printed."""
        return max(_size(log_path(self.directory, rank)) for rank in self.numbers)

    def facts(self, exits: list[Exit | None]) -> list[RankFacts]:
        """The evidence about each rank. exits: how each had ended; None for one that runs."""
        return [self._facts(rank, ended) for rank, ended in zip(self.numbers, exits, strict=True)]

    def some_failed(self, pids: list[int]) -> bool:
        """Whether a rank has failed, or ended before it was finished."""
        return any(
            phase == FAILED or (phase != FINISHED and exit_of(pid) is not None)
            for phase, pid in zip(self.phases(), pids, strict=True)
        )

    def some_stopped_in_a_call(self, pids: list[int]) -> bool:
        """Whether a rank died, or failed inside a call or while it met the others.

        What the others did is then half of the story: who left may not even be gone yet when it is noticed.
        """
        ends = [read_reserved(end_path(self.directory, rank)) for rank in self.numbers]
        died = any(end is None and exit_of(pid) for end, pid in zip(ends, pids, strict=True))
        return died or any(end and (end.get("waiting") or end.get("joining")) for end in ends)

    def settle(self, pids: list[int]) -> None:
        """Wait until each rank waits or has ended, or the time for that is up."""
        until = time.monotonic() + _CATCH_UP
        while time.monotonic() < until:
            phases = zip(self.phases(), pids, strict=True)
            if all(phase in (*SETTLED, FAILED) or exit_of(pid) for phase, pid in phases):
                return
            time.sleep(0.005)

    def write_stacks(self, pids: list[int], exits: list[Exit | None]) -> None:
        """Have the ranks that still run write where they are, and wait a moment for it: until nothing more is
        added, as it comes thread by thread.
        """
        known = zip(self.numbers, pids, exits, strict=True)
        asked = {rank: pid for rank, pid, ended in known if ended is None and self._ready(rank)}
        before = {rank: _size(stack_path(self.directory, rank)) for rank in asked}
        for pid in asked.values():
            processes.send(pid, signal.SIGUSR2)
        until, last = time.monotonic() + _STACK_PATIENCE, before
        while asked and time.monotonic() < until:
            time.sleep(0.005)
            sizes = {rank: _size(stack_path(self.directory, rank)) for rank in asked}
            if sizes == last and all(sizes[rank] != before[rank] for rank in asked):
                return
            last = sizes

    def _ready(self, rank: int) -> bool:
        """Whether the rank has come far enough for SIGUSR2 to ask for its stack, not to end it."""
        phase = self.phase(rank)
        page = self._pages.get(rank)
        return page is not None and page.events() > 0 and phase not in (FAILED, FINISHED, IDLE)

    def _facts(self, rank: int, ended: Exit | None) -> RankFacts:
        try:
            stack = stack_path(self.directory, rank).read_text(errors="replace")
        except OSError:
            stack = ""
        end = read_reserved(end_path(self.directory, rank))
        state = self._state(rank)
        if ended is None and end is None and state.phase == PHASES[FAILED]:
            ended = Exit(1, 0)  # it said so in its page, could write no more, and is about to leave
        printed = _size(log_path(self.directory, rank))
        return RankFacts(rank, state, end, ended, stack[-20000:], time.monotonic() - state.since, printed)

    def _state(self, rank: int) -> State:
        self.phase(rank)
        page = self._pages.get(rank)
        return page.read() if page else State(PHASES[STARTING])


def exit_of(pid: int) -> Exit | None:
    """How a child ended, without reaping it; None while it runs."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return Exit(0, 0)
    if found is None:
        return None
    return Exit(found.si_status, 0) if found.si_code == os.CLD_EXITED else Exit(0, found.si_status)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
