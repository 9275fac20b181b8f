"""The line between a session and its ranks: messages, answers, interrupts; and nobody waits for ever."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from labkit.launch.answers import failed_of
from labkit.launch.handover.session_wire import interrupts_later, send_all
from labkit.launch.job import Job
from labkit.launch.place import Listener
from labkit.record.state import IDLE, PHASES, WAITING

Answers = dict[int, dict[str, Any]]

_LOOK_EVERY = 0.05
_SETTLE = 0.5  # seconds the other ranks get to finish a cell after one failed in it
_AGAIN = 0.3  # seconds after which ranks are interrupted once more
_INTERRUPT = 1.0  # seconds ranks get to stop by themselves when the user interrupts


class RanksLost(ConnectionError):
    """Ranks have ended; or, where there is a reason (as `Job.end` takes it), are stuck and to be ended.

    failed: the ranks that have answered that they failed.
    """

    def __init__(self, reason: str = "", failed: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.reason, self.failed = reason, tuple(failed)


class Line:
    """Connections to the ranks of one job."""

    def __init__(self, job: Job, listener: Listener) -> None:
        self.pids: dict[int, int] = {}
        self.interrupted = False  # by the person, since `complete` or during the last exchange
        self.too_late = False  # whether that came when the ranks of the last exchange were done already
        self._told_to_stop = False  # whether ranks that were at work were, in the last exchange
        self._job, self._listener = job, listener
        self._connections: dict[int, Connection] = {}
        self._nameless: list[Connection] = []  # of ranks that have not said yet which they are

    def complete(self, patience: float) -> None:
        """Wait until every rank has reported, and listen no more. RanksLost when one does not in time.

        patience: seconds. An interrupt of what was done before is forgotten.
        """
        self.interrupted = False
        until = time.monotonic() + patience
        while len(self._connections) < self._job.ranks:
            if self._job.poll() or time.monotonic() > until:
                raise RanksLost
            with interrupts_later() as interrupts:  # a rank that has been let in would be lost
                self._accept()
            if interrupts:
                raise KeyboardInterrupt
        self._listener.close()

    def exchange(
        self,
        messages: Mapping[int, dict[str, Any]],
        timeout: float,
        heard: Callable[[int, Mapping[str, Any]], None],
        look: Callable[[Answers], None],
    ) -> Answers:
        """Send ranks their messages, and collect their answers.

        heard: called with each answer when it comes. look: called every 50 ms with those there are.
        """
        self._told_to_stop = False
        self._job.set_deadline(timeout)
        try:
            with interrupts_later() as interrupts:  # one that left answers behind would give them to the next
                self._send(messages, interrupts)
                answers = self._answers(list(messages), heard, look, interrupts)
            self.interrupted |= bool(interrupts)
            self.too_late = bool(interrupts) and not self._told_to_stop
        except (OSError, EOFError) as error:
            raise error if isinstance(error, RanksLost) else RanksLost from None
        self._job.set_deadline(0.0)
        return answers

    def close(self) -> None:
        """Hang up: the ranks end."""
        for connection in (*self._connections.values(), *self._nameless):
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        """Let a rank in that knocks, and hear which those are that have been let in."""
        outside = self._job.ranks - len(self._connections) - len(self._nameless)
        if outside and (connection := self._listener.accept(_LOOK_EVERY)) is not None:
            self._nameless.append(connection)
        for connection in _readable(self._nameless, 0 if outside else _LOOK_EVERY):
            try:
                hello = json.loads(connection.recv_bytes())
            except (OSError, EOFError):
                raise RanksLost from None
            self._nameless.remove(connection)
            self._connections[hello["rank"]] = connection
            self.pids[hello["rank"]] = hello["pid"]

    def _send(self, messages: Mapping[int, dict[str, Any]], interrupts: Sequence[int]) -> None:
        """Send each its message, whole."""
        pickled = {id(message): pickle.dumps(message) for message in messages.values()}
        frames = {self._connections[rank]: pickled[id(message)] for rank, message in messages.items()}
        since: list[float] = []

        def may_go_on() -> bool:
            if interrupts and not since:
                since.append(time.monotonic())
            late = bool(since) and time.monotonic() > since[0] + _INTERRUPT
            return not late and not self._job.poll()

        if not send_all(frames, may_go_on):
            raise RanksLost("interrupted")

    def _answers(
        self,
        ranks: Sequence[int],
        heard: Callable[[int, Mapping[str, Any]], None],
        look: Callable[[Answers], None],
        interrupts: Sequence[int],
    ) -> Answers:
        answers: Answers = {}
        until = float("inf")  # when those that have not answered are taken to be stuck
        asked = 0.0  # when they were last told to stop
        next_look = time.monotonic() + _LOOK_EVERY
        while missing := [rank for rank in ranks if rank not in answers]:
            self.interrupted |= bool(interrupts)
            if self.interrupted and time.monotonic() > asked + _AGAIN:
                until = until if asked else time.monotonic() + _INTERRUPT
                asked = self._interrupt(missing)
            for rank, answer in self._hear(missing).items():
                answers[rank] = answer
                heard(rank, answer)
                if not answer["ok"]:
                    until = min(until, time.monotonic() + _SETTLE)
            if len(answers) < len(ranks) and time.monotonic() > next_look:
                next_look = time.monotonic() + _LOOK_EVERY
                look(answers)
            behind = [rank for rank in missing if rank not in answers]
            if behind and time.monotonic() > until:
                if asked or not self._can_hear(behind):
                    failed = failed_of(answers)
                    raise RanksLost("failed" if failed else "interrupted", failed)
                asked, until = self._interrupt(behind), time.monotonic() + _INTERRUPT
            elif behind and self._job.poll():
                raise RanksLost
        return answers

    def _hear(self, ranks: Sequence[int]) -> Answers:
        """The answers that are there, or come within a moment."""
        waiting = {self._connections[rank]: rank for rank in ranks}
        found = _readable(list(waiting), _LOOK_EVERY)
        return {waiting[connection]: json.loads(connection.recv_bytes()) for connection in found}

    def _can_hear(self, ranks: Sequence[int]) -> bool:
        """Whether ranks that are behind one that failed can be asked to stop: none of them is in a call."""
        return all(self._job.run.state(rank).phase != PHASES[WAITING] for rank in ranks)

    def _interrupt(self, ranks: Sequence[int]) -> float:
        """Have ranks stop what they do; when that was. One that is still taking its message misses it."""
        at_work = [self._job.run.state(rank).phase != PHASES[IDLE] for rank in ranks]
        self._told_to_stop |= any(at_work)
        self._job.run.interrupt({rank: self.pids[rank] for rank in ranks})
        return time.monotonic()


def _readable(connections: Sequence[Connection], seconds: float) -> list[Connection]:
    """Those on which something has come, or comes in time."""
    return [one for one in wait(connections, seconds) if isinstance(one, Connection)]
