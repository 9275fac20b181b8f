"""A job as the notebook sees it: while it runs, when it is done, and how it failed."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from labkit.launch import render
from labkit.launch.failure.errors import Diagnosis, LaunchError, NotNow, error_for
from labkit.launch.handover.request import records_path, result_path
from labkit.launch.handover.session_wire import interrupts_later
from labkit.launch.names import readable, readable_text
from labkit.launch.output import Outputs
from labkit.launch.place import Run
from labkit.launch.screen import QueueLine
from labkit.record.events import Collective, MemoryUse, Span
from labkit.record.files import Record, read_records

_LOOK_EVERY = 0.05  # seconds between two looks at the output

Watcher = Callable[["Job"], None]


class Job:
    """A function on ranks. All lists are indexed by rank.

    results: what the function returned; NotNow as long as it runs, and the job's error where it failed.
    output: what each rank printed. wall_seconds: from launch to the last rank's end. record, and its parts
    collectives, spans, timeline and memory: what was recorded; times in seconds since the first rank entered
    the function. They are complete once the job has finished; `wait` raises a LaunchError otherwise. Several
    threads may look at it, and end it.
    """

    def __init__(self, run: Run, notes: Sequence[str] = ()) -> None:
        self.run = run
        self.ranks, self.backend = run.request.ranks, run.request.backend
        self._results: list[Any] = [None] * self.ranks
        self.record = Record(self.ranks, [], [], [], [])
        self.wall_seconds = 0.0
        self.error: LaunchError | None = None
        self.notes = list(notes)
        self.shown = False  # whether the output has been displayed while the job ran
        self.done = False
        self._outputs = Outputs(run.directory, self.ranks)
        self._lock = threading.RLock()  # of what goes with the job's directory when one thread collects it
        self._started = time.monotonic()
        weakref.finalize(self, run.abandon).atexit = False

    @property
    def results(self) -> list[Any]:
        """What the function returned on each rank."""
        if not self.poll():
            raise NotNow("the job still runs and has no results yet: job.wait() waits for them")
        if self.error is not None:
            raise self.error
        return self._results

    @property
    def output(self) -> list[str]:
        """What each rank has printed so far (its middle left out when it is more than a mebibyte)."""
        self._read_output()
        return self._outputs.texts()

    def new_output(self, positions: list[int]) -> list[str]:
        """What each rank has printed after these byte positions, which are moved forward."""
        self._read_output()
        return self._outputs.since(positions)

    def output_positions(self) -> list[int]:
        """How many bytes each rank has printed, as far as they have been read."""
        return self._outputs.positions()

    @property
    def collectives(self) -> list[Collective]:
        """What the ranks communicated, in start order."""
        return self.record.collectives

    @property
    def spans(self) -> list[Span]:
        """The stretches of time that `labkit.span` named, in start order."""
        return self.record.spans

    @property
    def memory(self) -> list[MemoryUse]:
        """The most that each rank held."""
        return self.record.memory

    @property
    def timeline(self) -> list[Span]:
        """Spans and collectives of all ranks, in start order. A collective nobody waited for is a point."""
        return self.record.timeline

    @property
    def nodes(self) -> list[str]:
        """The node of each rank, where the job has several; empty for a job on this machine."""
        return self.run.nodes

    def where(self, rank: int) -> str:
        """' on n2' for a rank on node n2; "" for a job on this machine, and as long as it is not known."""
        nodes = self.nodes
        return f" on {nodes[rank]}" if nodes and nodes[rank] else ""

    def state(self) -> str:
        """'waiting, place 2 in the queue (Resources)', 'running on n[1-2]', 'finished', 'failed: error'."""
        if self.done:
            return "finished" if self.error is None else f"failed: {self.error.verdict}"
        return self.run.standing()

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank, as `labkit.progress` set it; zeros where it did not."""
        return [] if self.done else self.run.progress()

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether the job has ended; waits up to `timeout` seconds for it. Raises nothing."""
        diagnosis = None if self.done else self.run.ended(timeout)
        if diagnosis is not None:
            with self._lock:
                if not self.done:  # by another thread that has seen the end too
                    self._collect(diagnosis)
        return self.done

    def wait(self, watch: Watcher | None = None) -> Job:
        """Wait until every rank has finished. Raises the LaunchError that fits when the job fails.

        watch: called every 50 ms meanwhile, from this thread. An interrupt cancels the job, and is told too
        where the job was faster.
        """
        try:
            if watch is not None:
                self.wait_for_turn()
            while not self.poll(_LOOK_EVERY):
                self._read_output()
                if watch is not None:
                    watch(self)
        except KeyboardInterrupt:
            self.end("interrupted")
            if self.error is None:  # who interrupts a loop of jobs means those that follow
                told = Diagnosis("interrupted", "the notebook was interrupted when the job had just finished")
                raise error_for(told, self.output) from None
        finally:
            if watch is not None:
                watch(self)
        if self.error is not None:
            raise self.error
        return self

    def wait_for_turn(self) -> None:
        """Wait in the cluster's queue, if the job is in one, and show its place there."""
        line = QueueLine()
        while self.run.queued() and not self.poll(_LOOK_EVERY):
            line.show(self.run.standing())
        line.close()

    def cancel(self) -> None:
        """End a running job, and wait until it has ended. Does nothing when it already has."""
        self.end("cancelled")

    def end(self, reason: str) -> None:
        """The same for another reason: "interrupted", or "failed" when a rank has."""
        while not self.done:  # it ends in a moment, and must not be left half-way
            with contextlib.suppress(KeyboardInterrupt), interrupts_later():
                self.stop(reason)
                while not self.poll(_LOOK_EVERY):
                    pass

    def stop(self, reason: str) -> None:
        """Have it ended, as `end` does, and do not wait: who polls finds its end."""
        with self._lock:
            if not self.done:
                self.run.stop(reason)

    def set_deadline(self, seconds: float) -> None:
        """End the job if it still works in `seconds` seconds; 0 for never."""
        with self._lock:
            if not self.done:
                self.run.set_deadline(seconds)

    def hold(self) -> LaunchError | None:
        """Have the ranks of a job that cannot go on, because one failed, left as they are until it is ended.

        The error that it would have ended with; None where ranks cannot be held, or have ended meanwhile.
        """
        with self._lock:
            diagnosis = None if self.done else self.run.hold()
        return None if diagnosis is None or self.poll() else error_for(readable(diagnosis), self.output)

    def _read_output(self) -> None:
        with self._lock:
            if not self.done:
                self._outputs.read()

    # -- what is left of the job when it has ended

    def _collect(self, diagnosis: Diagnosis) -> None:
        self.wall_seconds = time.monotonic() - self._started
        self._outputs.read()
        self._outputs.close()
        paths = [records_path(self.run.directory, rank) for rank in range(self.ranks)]
        record = read_records(paths, self.run.clocks(), self.nodes)
        self.record = replace(record, collectives=[_with_readable_line(call) for call in record.collectives])
        if diagnosis.verdict == "finished":
            diagnosis = self._load_results() or diagnosis
        if diagnosis.verdict != "finished":
            self.error = error_for(readable(diagnosis), self._outputs.texts())
        self.done = True
        self.run.close()

    def _load_results(self) -> Diagnosis | None:
        for rank in range(self.ranks):
            try:
                with open(result_path(self.run.directory, rank), "rb") as file:
                    self._results[rank] = pickle.load(file)
            except Exception as error:
                summary = f"what rank {rank} returned cannot be read here: {type(error).__name__}: {error}"
                return Diagnosis("error", summary, rank, hint="return tensors, numbers, lists and dicts")
        return None

    def __repr__(self) -> str:
        nodes = self.run.request.nodes
        over = f" of {nodes} nodes" if nodes > 1 else ""
        state = self.state() if self.error is not None or not self.done else f"{self.wall_seconds:.2f} s"
        lines = [f"Job on {self.ranks} ranks{over} ({self.backend}), {state}"]
        if self.done and self.error is None:
            lines += [f"  rank {rank}: {_short(value)}" for rank, value in enumerate(self.results)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A line about the job, its results, and its output unless that was shown while it ran."""
        head = f"{self.ranks} ranks · {self.backend} · "
        if not self.done or self.error is not None:
            return render.line_html(head + self.state())
        parts = [
            render.line_html(" · ".join([f"{head}{self.wall_seconds:.2f} s", *self._traffic(), *self.notes]))
        ]
        if any(value is not None for value in self.results):
            values = {rank: _long(value) for rank, value in enumerate(self.results)}
            parts.append(render.values_html(values, self.nodes))
        if not self.shown:
            parts.append(render.output_html(dict(enumerate(self.output)), self.nodes))
        return "".join(parts)

    def _traffic(self) -> list[str]:
        """'rank 0 called 3 all_reduce, 1 broadcast' for the busiest rank."""
        per_rank = Counter(call.rank for call in self.collectives)
        if not per_rank:
            return []
        rank = min(per_rank, key=lambda r: (-per_rank[r], r))
        made = Counter(call.op for call in self.collectives if call.rank == rank)
        return [f"rank {rank} called {', '.join(f'{count} {op}' for op, count in made.items())}"]


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"a {type(value).__name__} (its text cannot be had: __repr__ raised {type(error).__name__})"


def _short(value: Any, limit: int = 100) -> str:
    text = " ".join(_repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _long(value: Any, limit: int = 2000) -> str:
    text = _repr(value)
    return text if len(text) <= limit else text[:limit] + " …"


def _with_readable_line(call: Collective) -> Collective:
    line = readable_text(call.line)
    return call if line == call.line else replace(call, line=line)
