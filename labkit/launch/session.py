"""A session: ranks that stay alive between cells, with their variables."""

from __future__ import annotations

import ast
import json
import linecache
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from labkit.launch import api
from labkit.launch.cell import CellResult, CellWatcher
from labkit.launch.failure.diagnose import RankFacts, diagnose, on_nodes
from labkit.launch.failure.errors import Diagnosis, InfrastructureError, error_for
from labkit.launch.handover.notebook_names import Sender
from labkit.launch.handover.request import Wanted, check_timeout, records_path, result_path
from labkit.launch.job import Job
from labkit.launch.names import readable
from labkit.launch.place import Listener, Place
from labkit.record.events import Collective, Span
from labkit.record.files import read_records
from labkit.record.state import IDLE, PHASES, WAITING, State

_LOOK_EVERY = 0.05
_SETTLE = 0.5  # seconds the other ranks get to finish a cell after one failed in it
_INTERRUPT = 1.0  # seconds ranks get to stop by themselves when the user interrupts


class Session:
    """Ranks that stay. `run` executes source on them, `call` a function; a fault brings fresh ones."""

    def __init__(self, place: Place, wanted: Wanted) -> None:
        request, notes = place.plan(wanted)
        self._place = place
        self._request = replace(request, target=place.session_target, timeout=0)
        self.ranks, self.backend, self.nodes = request.ranks, request.backend, place.nodes
        self.seed, self.notes = wanted.seed, list(notes)
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self._positions = [0] * self.ranks  # of the output, when the current cell began
        self._listener: Listener | None = None
        self._job: Job | None = None
        self._busy = threading.Lock()
        self.start()

    # -- life

    def start(self) -> None:
        """Start the ranks, if they do not run. Returns at once; the first cell waits for them."""
        if self.alive:
            return
        self._hang_up()
        self._positions = [0] * self.ranks
        self._sender = Sender()
        self._job = Job(self._place.start(self._request, b"", self._listen))

    def _listen(self, directory: Path) -> None:
        self._listener = self._place.listen(directory)

    def stop(self) -> None:
        """End the ranks; their variables are gone."""
        self._hang_up()
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def restart(self) -> None:
        """Fresh ranks, without the variables."""
        self.stop()
        self.start()

    @property
    def alive(self) -> bool:
        """Whether the ranks run."""
        return self._job is not None and not self._job.poll()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "alive" if self.alive else "stopped"
        return f"Session of {self.ranks} ranks ({self.backend}), {state}"

    def status(self) -> list[str]:
        """One line a rank: what it does now."""
        if not self.alive or self._job is None:
            return ["the session is not running"]
        phases = [self._job.run.state(rank).phase for rank in range(self.ranks)]
        return [
            f"rank {rank}{self._job.where(rank)}: {phase}, process {self._pids.get(rank, '?')}"
            for rank, phase in enumerate(phases)
        ]

    def progress(self) -> list[tuple[float, float, str]]:
        """(done, total, label) of each rank, as `labkit.progress` set it; zeros where it did not."""
        return self._job.progress() if self._job is not None else []

    # -- work

    def run(
        self,
        source: str,
        *,
        ranks: Sequence[int] | None = None,
        timeout: float = 60,
        names: Mapping[str, Any] | None = None,
        file: str = "<cell>",
        watch: CellWatcher | None = None,
    ) -> CellResult:
        """Execute a cell's source on every rank (or on those of `ranks`), and wait for them.

        names: a namespace, such as the notebook's, from which functions, classes and values that the source
        uses are sent along. watch: called every 50 ms with the result so far.

        Raises a LaunchError when a rank fails. If the other ranks cannot finish then, or the timeout passes,
        the session is replaced by a fresh one.
        """
        chosen = self._chosen(ranks)
        check_timeout(timeout)
        ast.parse(source, file)  # a SyntaxError is the notebook's own, and reaches no rank
        with self._to_itself():
            return self._cell(source, chosen, timeout, names, file, watch)

    def _cell(
        self,
        source: str,
        ranks: Sequence[int],
        timeout: float,
        names: Mapping[str, Any] | None,
        file: str,
        watch: CellWatcher | None,
    ) -> CellResult:
        self._connect()
        packed = self._sender.pack(source, names, file) if names is not None else None
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        message = {"do": "cell", "source": source, "file": file, "names": packed}
        return self._round(message, ranks, timeout, watch)

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 60, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; what each returned."""
        check_timeout(timeout)
        payload = api.pickle_call(function, args, kwargs)
        message = {"do": "call", "payload": payload, "limit": self._request.max_result_bytes}
        with self._to_itself():
            self._connect()
            self._round(message, range(self.ranks), timeout, None)
            directory = self._running_job().run.directory
            return [pickle.loads(result_path(directory, rank).read_bytes()) for rank in range(self.ranks)]

    def records(self) -> tuple[list[Collective], list[Span]]:
        """What the ranks communicated in the last cell or call, and their spans; times from its start."""
        with self._to_itself():
            self._round({"do": "records"}, range(self.ranks), 60, None)
        run = self._running_job().run
        paths = [records_path(run.directory, rank) for rank in range(self.ranks)]
        calls, spans, _ = read_records(paths, run.clocks())
        return calls, spans

    @contextmanager
    def _to_itself(self) -> Iterator[None]:
        """While one thread uses the ranks. RuntimeError when another one does."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "the session runs a cell of another thread: wait for it, or take a session for each thread"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _chosen(self, ranks: Sequence[int] | None) -> Sequence[int]:
        wrong = [rank for rank in ranks or () if not 0 <= rank < self.ranks]
        if wrong:
            raise ValueError(f"there is no rank {wrong[0]}: the session has ranks 0 to {self.ranks - 1}")
        return range(self.ranks) if ranks is None else sorted(set(ranks))

    def _running_job(self) -> Job:
        assert self._job is not None
        return self._job

    def _connect(self) -> None:
        if self._job is not None and self._job.poll():
            self._died()  # since the last cell, which somebody has to be told
        self.start()
        self._running_job().wait_for_turn()
        until = time.monotonic() + self._place.patience
        while len(self._connections) < self.ranks:
            if self._running_job().poll() or time.monotonic() > until:
                self._died()
            self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        connection = self._listener.accept(_LOOK_EVERY)
        if connection is not None:
            hello = json.loads(connection.recv_bytes())
            self._connections[hello["rank"]] = connection
            self._pids[hello["rank"]] = hello["pid"]

    def _round(
        self, message: dict[str, Any], ranks: Sequence[int], timeout: float, watch: CellWatcher | None
    ) -> CellResult:
        """Send a message to ranks and collect their answers."""
        job = self._running_job()
        positions = self._positions = job.output_positions()
        started = time.monotonic()
        job.run.set_deadline(timeout)
        data = pickle.dumps(message)
        try:
            for rank in ranks:
                self._connections[rank].send_bytes(data)
            answers = self._answers(ranks, positions, watch)
        except (OSError, EOFError):
            self._died()
        if not job.done:
            job.run.set_deadline(0.0)
        result = self._result(ranks, answers, positions)
        result.wall_seconds = time.monotonic() - started
        self._raise_errors(answers, result)
        return result

    def _answers(
        self, ranks: Sequence[int], positions: list[int], watch: CellWatcher | None
    ) -> dict[int, dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        failed_at = float("inf")
        asked = False  # whether the ranks have been told to stop
        next_look = time.monotonic() + _LOOK_EVERY
        while len(answers) < len(ranks):
            try:
                missing = {self._connections[rank]: rank for rank in ranks if rank not in answers}
                for connection in wait(list(missing), _LOOK_EVERY):
                    assert isinstance(connection, Connection)
                    answer = json.loads(connection.recv_bytes())
                    answers[missing[connection]] = answer
                    if not answer["ok"]:
                        failed_at = min(failed_at, time.monotonic())
                if watch is not None and len(answers) < len(ranks) and time.monotonic() > next_look:
                    next_look = time.monotonic() + _LOOK_EVERY
                    watch(self._result(ranks, answers, positions))
            except KeyboardInterrupt:
                self._running_job().run.interrupt({rank: self._pids[rank] for rank in ranks})
                failed_at, asked = time.monotonic() + _INTERRUPT - _SETTLE, True
            if time.monotonic() > failed_at + _SETTLE and not asked and self._ask(ranks, answers):
                failed_at, asked = time.monotonic() + _INTERRUPT - _SETTLE, True
            elif time.monotonic() > failed_at + _SETTLE:
                self._stop_job("failed" if any(not a["ok"] for a in answers.values()) else "interrupted")
            elif self._running_job().poll():
                self._died()
        return answers

    def _ask(self, ranks: Sequence[int], answers: Mapping[int, Any]) -> bool:
        """Interrupt ranks that are behind one that failed; False when one is in a call, and cannot hear."""
        run = self._running_job().run
        behind = [rank for rank in ranks if rank not in answers]
        if any(run.state(rank).phase == PHASES[WAITING] for rank in behind):
            return False
        run.interrupt({rank: self._pids[rank] for rank in behind})
        return True

    def _stop_job(self, reason: str) -> None:
        """The other ranks are stuck: have the agent look at them and end them, then say why."""
        self._running_job().end(reason)
        self._died()

    def _died(self) -> None:
        """Raise what the ranks died of, with their replacements already starting."""
        job = self._running_job()
        until = time.monotonic() + 2
        while not job.poll(0.02) and time.monotonic() < until:
            pass
        if not job.done:
            job.cancel()
        error = job.error or InfrastructureError(
            Diagnosis("infrastructure", "the session's ranks ended", hint="run the cell again")
        )
        error.output = job.new_output(list(self._positions))
        error.add_note("The session was replaced: its ranks are fresh, and their variables are gone.")
        self._hang_up()
        self._job = None
        self.start()
        raise error

    def _result(
        self, ranks: Sequence[int], answers: Mapping[int, dict[str, Any]], positions: list[int]
    ) -> CellResult:
        texts = self._running_job().new_output(list(positions))
        return CellResult(
            ranks=tuple(ranks),
            output={rank: texts[rank] for rank in ranks},
            values={rank: answers.get(rank, {}).get("value", "") for rank in ranks},
            html={rank: answers.get(rank, {}).get("html", "") for rank in ranks},
            nodes=self._running_job().nodes,
        )

    def _raise_errors(self, answers: Mapping[int, dict[str, Any]], result: CellResult) -> None:
        if all(answer["ok"] for answer in answers.values()):
            return
        facts = [
            RankFacts(rank, self._state(rank, answer), answer.get("error"), None)
            for rank, answer in sorted(answers.items())
        ]
        diagnosis = on_nodes(diagnose("failed", facts, 0.0), self._running_job().nodes)
        raise error_for(readable(diagnosis), [result.output.get(rank, "") for rank in range(self.ranks)])

    def _state(self, rank: int, answer: Mapping[str, Any]) -> State:
        """Of a rank that has answered, and waits since: where it failed, if it did."""
        if not answer["ok"]:
            return msgspec.convert(answer["error"]["page"], State, str_keys=True)
        return replace(self._running_job().run.state(rank), phase=PHASES[IDLE])

    def _hang_up(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._pids.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def session(
    ranks: int | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    nodes: int = 1,
    seed: int | None = None,
) -> Session:
    """Ranks that stay alive: `session.run("x = 1")`, `session.run("x")`, `session.call(fn, 2)`.

    nodes: over how many machines of a Slurm cluster they are spread; seed: for their random numbers; both as
    in `launch`.
    """
    return Session(api.place_for(nodes), Wanted(ranks, backend, env=env or {}, seed=seed))
