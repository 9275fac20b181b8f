"""Ranks that stay: how they start, end, and are replaced when they are lost."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from labkit.launch.failed_ranks import REPLACED, FailedRanks
from labkit.launch.failure.errors import Diagnosis, InfrastructureError, LaunchError, error_for
from labkit.launch.failure.errors import NotNow as NotNow  # whose home this is for those who use a session
from labkit.launch.handover.request import Wanted
from labkit.launch.job import Job
from labkit.launch.line import Line, RanksLost
from labkit.launch.place import Listener, Place

_HELD = "Until the next cell the ranks that failed can be looked at with `%ranks debug`; the others wait."
_INTERRUPTED = 3.0  # seconds that a cell of another thread gets to end when it is interrupted
_ENDED = 30.0  # and when its ranks are ended: those of several nodes take longer than ours


class StayingRanks(ABC):
    """The ranks of a session, from their start to their end, and those that take their place.

    None run before `start`. One thread uses them at a time (`_to_itself`), when all have reported (`_begin`).
    """

    def __init__(self, place: Place, wanted: Wanted, instead_of: StayingRanks | None) -> None:
        request, notes = place.plan(wanted)
        if instead_of is not None:
            instead_of.stop()
        self._place = place
        self._request = replace(request, target=place.session_target, timeout=0)
        self.ranks, self.backend, self.nodes = request.ranks, request.backend, place.nodes
        self.seed, self.notes = wanted.seed, list(notes)
        self._positions = [0] * self.ranks  # of the output, when the current cell began
        self._line: Line | None = None
        self._job: Job | None = None
        self._failed: FailedRanks | None = None  # by the last cell
        self._busy = threading.Lock()

    @abstractmethod
    def _begin_anew(self) -> None:
        """Forget what earlier ranks had: new ones are about to start."""

    def start(self) -> None:
        """Start the ranks, if they do not run. Returns at once; the first cell waits for them."""
        if self.alive:
            return
        self._hang_up()
        self._positions = [0] * self.ranks
        self._begin_anew()
        listeners: list[Listener] = []

        def listen(directory: Path) -> None:  # again, where a place has to begin anew
            while listeners:
                listeners.pop().close()
            listeners.append(self._place.listen(directory))

        try:
            self._job = Job(self._place.start(self._request, b"", listen))
            self._line = Line(self._job, listeners.pop())
        finally:
            for listener in listeners:
                listener.close()

    def stop(self) -> None:
        """End the ranks; their variables are gone."""
        mine = self._busy.acquire(blocking=False) or self._taken_from_another_thread()
        try:
            self._forget_failure()
            self._hang_up()
            if self._job is not None:
                self._job.cancel()
                self._job = None
        finally:
            if mine:
                self._busy.release()

    def restart(self) -> None:
        """Fresh ranks, without the variables."""
        self.stop()
        self.start()

    def interrupt(self) -> None:
        """Have the ranks stop the cell that another thread waits for."""
        if self._line is not None:
            self._line.interrupted = True

    @property
    def alive(self) -> bool:
        """Whether the ranks run."""
        return self._job is not None and not self._job.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def status(self) -> list[str]:
        """One line a rank: what it does now."""
        if not self.alive or self._job is None:
            held = self._failed is not None and self._failed.held
            return [_HELD if held else "the session is not running"]
        phases = [self._job.run.state(rank).phase for rank in range(self.ranks)]
        pids = self._line.pids if self._line is not None else {}
        return [
            f"rank {rank}{self._job.where(rank)}: {phase}, process {pids.get(rank, '?')}"
            for rank, phase in enumerate(phases)
        ]

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank, as `labkit.progress` set it; zeros where it did not."""
        return self._job.progress() if self._job is not None else []

    @contextmanager
    def _to_itself(self) -> Iterator[None]:
        """While one thread uses the ranks. NotNow when another one does."""
        if not self._busy.acquire(blocking=False):
            raise NotNow(
                "the session runs a cell of another thread, or one that was started with --async: wait for "
                "it (`.result()`), or take a session for each thread"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _taken_from_another_thread(self) -> bool:
        """End the cell that another thread waits for; whether the session is this thread's then."""
        self.interrupt()
        if self._busy.acquire(timeout=_INTERRUPTED):
            return True
        if (job := self._job) is not None:
            job.stop("cancelled")  # the other thread, which waits for it, collects it
        return self._busy.acquire(timeout=_ENDED)

    def _begin(self) -> None:
        """Be ready for the next cell."""
        self._forget_failure()
        self._connect()

    def _connect(self) -> None:
        if self._job is not None and self._job.poll():
            self._died()  # since the last cell, which somebody has to be told
        self.start()
        self._running_job().wait_for_turn()
        with self._replaced_when_lost():
            self._open_line().complete(self._place.patience)

    def _running_job(self) -> Job:
        if self._job is None:
            raise error_for(Diagnosis("cancelled", "the session was stopped while a cell ran"), [])
        return self._job

    def _open_line(self) -> Line:
        assert self._line is not None
        return self._line

    @contextmanager
    def _replaced_when_lost(self) -> Iterator[None]:
        """Have fresh ranks take the place of those that can no longer be talked to, and say why."""
        try:
            yield
        except RanksLost as lost:
            job = self._running_job()
            if lost.failed and (error := job.hold()) is not None:
                self._failed = FailedRanks(job, self._open_line(), lost.failed, held=True)
                self._line = self._job = None
                raise self._told(job, error, _HELD) from None
            if lost.reason:  # they are stuck: have the agent look at them and end them
                job.end(lost.reason)
            self._died()

    def _died(self) -> None:
        """Raise what the ranks died of; those of ranks that had come are replaced, and start already."""
        job = self._running_job()
        until = time.monotonic() + self._place.parting
        while not job.poll(0.02) and time.monotonic() < until:
            pass
        came = len(self._open_line().pids)
        summary, error = "the session's ranks ended", job.error
        if not job.done:
            job.cancel()  # which would be its error
            summary = (
                f"the session's ranks do not answer: {came} of {self.ranks} had reported; all were ended"
            )
        error = error or InfrastructureError(Diagnosis("infrastructure", summary, hint="run the cell again"))
        hint = error.diagnosis.hint.replace("launch again", "run the cell again")
        error.diagnosis = replace(error.diagnosis, hint=hint)
        if came:
            error = self._told(job, error)
        self._hang_up()
        self._job = None
        if came:  # what kept these from coming, a queue say, is not waited for again until somebody asks
            self.start()
        raise error

    def _told(self, job: Job, error: LaunchError, *more: str) -> LaunchError:
        """What the ranks of a job failed of, with what they printed, and that others take their place."""
        error.output = job.new_output(list(self._positions))
        error.add_note(" ".join([REPLACED, *more]))
        return error

    def _forget_failure(self) -> None:
        """Let go of ranks that were held after the last cell."""
        failed, self._failed = self._failed, None
        if failed is not None:
            failed.end()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
