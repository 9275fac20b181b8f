"""A job as the notebook sees it: while it runs, when it is done, and how it failed."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.launch.client import EngineGone, EngineProcess
from labkit.launch.failure.errors import Diagnosis, InfrastructureError, LaunchError, error_for
from labkit.launch.handover.directory import remove
from labkit.launch.handover.request import CONTROL, VERDICT, Request, records_path, result_path, state_path
from labkit.launch.handover.reserved import read_reserved
from labkit.launch.names import readable, readable_text
from labkit.launch.output import Outputs
from labkit.record.events import Collective, MemoryUse, Span
from labkit.record.files import read_records
from labkit.record.state import ControlPage, StatePage

_LOOK_EVERY = 0.05  # seconds between two looks at the output
_PATIENCE = 10.0  # seconds after the deadline until the agent itself is no longer trusted to end the job

Watcher = Callable[["Job"], None]


class Job:
    """A function on ranks. All lists are indexed by rank.

    results: what the function returned. output: what each rank printed. wall_seconds: from launch to the last
    rank's end. collectives, timeline (spans and collectives), memory: what was recorded; times in seconds
    since the first rank entered the function. They are complete once the job has finished; `wait` raises a
    LaunchError otherwise.
    """

    def __init__(self, engine: EngineProcess, directory: Path, request: Request) -> None:
        self.ranks = request.ranks
        self.backend = request.backend
        self.results: list[Any] = [None] * request.ranks
        self.collectives: list[Collective] = []
        self.spans: list[Span] = []
        self.memory: list[MemoryUse] = []
        self.wall_seconds = 0.0
        self.error: LaunchError | None = None
        self.notes: list[str] = []
        self.shown = False  # whether the output has been displayed while the job ran
        self._engine, self._directory, self._request = engine, directory, request
        self._outputs = Outputs(directory, request.ranks)
        self._started = time.monotonic()
        self._deadline = self._started + request.timeout if request.timeout else float("inf")
        self._control: ControlPage | None = ControlPage(directory / CONTROL)
        self._control.set_deadline(self._deadline if request.timeout else 0.0, request.timeout)
        self.done = False

    @property
    def output(self) -> list[str]:
        """What each rank has printed so far (its middle left out when it is more than a mebibyte)."""
        if not self.done:
            self._outputs.read()
        return self._outputs.texts()

    def new_output(self, positions: list[int]) -> list[str]:
        """What each rank has printed after these byte positions, which are moved forward."""
        return self._outputs.since(positions)

    @property
    def timeline(self) -> list[Span]:
        """Spans and collectives of all ranks, in start order. A collective nobody waited for is a point."""
        calls = [
            Span(c.rank, c.op, "communication", c.start, c.start if c.end is None else c.end)
            for c in self.collectives
        ]
        return sorted([*self.spans, *calls], key=lambda item: item.start)

    @property
    def nodes(self) -> list[str]:
        """The node of each rank, where the job has several; empty for a job on this machine."""
        return []

    def where(self, rank: int) -> str:
        """' on n2' for a rank on node n2; "" for a job on this machine, and as long as it is not known."""
        nodes = self.nodes
        return f" on {nodes[rank]}" if nodes and nodes[rank] else ""

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank, as `labkit.progress` set it; zeros where it did not."""
        if self.done:
            return []
        found = []
        for rank in range(self.ranks):
            try:
                page = StatePage(state_path(self._directory, rank))
                found.append(page.progress())
                page.close()
            except (OSError, ValueError):
                found.append((0.0, 0.0, ""))
        return found

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether the job has ended; waits up to `timeout` seconds for it. Raises nothing."""
        if self.done:
            return True
        try:
            code = self._engine.ended(self._directory, timeout)
            if code is None and time.monotonic() > self._deadline + _PATIENCE:
                self._engine.kill(self._directory)
        except EngineGone:
            self._collect(self._engine_gone())
            return True
        if code is not None:
            self._collect(self._verdict(code))
        return code is not None

    def wait(self, watch: Watcher | None = None) -> Job:
        """Wait until every rank has finished. Raises the LaunchError that fits when the job fails.

        watch: called every 50 ms meanwhile, from this thread. An interrupt cancels the job.
        """
        try:
            while not self.poll(_LOOK_EVERY):
                self._outputs.read()
                if watch is not None:
                    watch(self)
        except KeyboardInterrupt:
            self._stop("interrupted")
        finally:
            if watch is not None:
                watch(self)
        if self.error is not None:
            raise self.error
        return self

    def cancel(self) -> None:
        """End a running job, and wait until it has ended. Does nothing when it already has."""
        self._stop("cancelled")

    def _stop(self, reason: str) -> None:
        if self._control is None:
            return
        self._control.stop(reason)
        until = time.monotonic() + 2
        while not self.poll(0.05):
            if time.monotonic() > until:
                self._engine.kill(self._directory)

    # -- what is left of the job when it has ended

    def _collect(self, diagnosis: Diagnosis) -> None:
        self.wall_seconds = time.monotonic() - self._started
        self._outputs.read()
        paths = [records_path(self._directory, rank) for rank in range(self.ranks)]
        calls, self.spans, self.memory = read_records(paths, self._clocks())
        self.collectives = [_with_readable_line(call) for call in calls]
        if diagnosis.verdict == "finished":
            diagnosis = self._load_results() or diagnosis
        if diagnosis.verdict != "finished":
            self.error = error_for(readable(diagnosis), self._outputs.texts())
        self.done = True
        self._outputs.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        remove(self._directory)

    def _clocks(self) -> list[float]:
        """What to add to each rank's times to have them on one clock: nothing on one machine."""
        return [0.0] * self.ranks

    def _load_results(self) -> Diagnosis | None:
        for rank in range(self.ranks):
            try:
                with open(result_path(self._directory, rank), "rb") as file:
                    self.results[rank] = pickle.load(file)
            except Exception as error:
                summary = f"what rank {rank} returned cannot be read here: {type(error).__name__}: {error}"
                return Diagnosis("error", summary, rank, hint="return tensors, numbers, lists and dicts")
        return None

    def _verdict(self, code: int) -> Diagnosis:
        found = read_reserved(self._directory / VERDICT)
        if found is not None:
            found.pop("reason", None)
            return Diagnosis.from_json(found)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = self._engine.last_words()
        summary = f"the job's agent ended without a report ({how})" + (f": {words}" if words else "")
        return Diagnosis("infrastructure", summary, hint="launch again; your code is not to blame")

    def _engine_gone(self) -> Diagnosis:
        words = self._engine.last_words()
        self._engine.bury()
        summary = "the launcher's engine process was ended from outside" + (f": {words}" if words else "")
        return Diagnosis("infrastructure", summary, hint="launch again: a new engine starts by itself")

    def __repr__(self) -> str:
        state = "running"
        if self.done:
            state = f"{self.wall_seconds:.2f} s" if self.error is None else f"failed: {self.error.verdict}"
        lines = [f"Job on {self.ranks} ranks ({self.backend}), {state}"]
        if self.done and self.error is None:
            lines += [f"  rank {rank}: {_short(value)}" for rank, value in enumerate(self.results)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from labkit.launch.render import job_html

        return job_html(self)


def _short(value: Any, limit: int = 100) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _with_readable_line(call: Collective) -> Collective:
    from dataclasses import replace

    line = readable_text(call.line)
    return call if line == call.line else replace(call, line=line)


def job_directory_full(path: Path, error: OSError) -> InfrastructureError:
    """The job could not even be written down."""
    summary = f"the job's directory {path} cannot be written: {error.strerror}"
    hint = "free some space there, or set TMPDIR to a directory with room"
    return InfrastructureError(Diagnosis("infrastructure", summary, hint=hint))


__all__ = ["Job", "job_directory_full"]
