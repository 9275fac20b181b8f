"""A session: ranks that stay alive between cells, with their variables."""

from __future__ import annotations

import linecache
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Unpack

from labkit.launch import api
from labkit.launch.answers import disagreement, error_of, failed_of, result_of, unmentioned
from labkit.launch.background import RunningCell
from labkit.launch.cell import Cell, CellOptions, CellResult, CellWatcher
from labkit.launch.failed_ranks import FailedRanks
from labkit.launch.failure.errors import Diagnosis, LaunchError, error_for
from labkit.launch.handover.cell_names import needed_names
from labkit.launch.handover.notebook_graph import CannotSend
from labkit.launch.handover.notebook_names import Offer, Sender
from labkit.launch.handover.request import Wanted, check_timeout, records_path, result_path
from labkit.launch.place import Place
from labkit.launch.staying_ranks import NotNow, StayingRanks
from labkit.launch.values import Exchange
from labkit.record.agreement import Ledger
from labkit.record.files import Record, read_records


class Session(StayingRanks, Exchange):
    """Ranks that stay. `run` executes source on them, `call` a function; a fault brings fresh ones.

    How they start and end is in `staying_ranks.StayingRanks`; `push`, `pull`, `scatter` and `gather` are in
    `values.Exchange`.
    """

    def __init__(self, place: Place, wanted: Wanted, instead_of: Session | None = None) -> None:
        super().__init__(place, wanted, instead_of)
        self.failure: LaunchError | None = None  # of the last cell
        self.until_failure: CellResult | None = None  # what it had shown, where its ranks still tell
        self.start()

    def _begin_anew(self) -> None:
        self._ran: list[int] = []  # the ranks that had the last cell or call
        self._sender, self._ledger = Sender(self.ranks), Ledger(self.ranks)
        self._offer: Offer | None = None  # what the current cell brings along

    def __repr__(self) -> str:
        state = "alive" if self.alive else "stopped"
        return f"Session of {self.ranks} ranks ({self.backend}), {state}"

    def run(
        self, source: str, *, watch: CellWatcher | None = None, **options: Unpack[CellOptions]
    ) -> CellResult:
        """Execute a cell's source on every rank, or as `options` say, and wait for it.

        watch: called every 50 ms with the result so far. Raises a LaunchError when a rank fails. If the other
        ranks cannot finish then, or the timeout passes, the session is replaced by a fresh one.
        """
        cell = Cell(source, **options)
        with self._to_itself():
            return self._perform(cell, *self._prepare(cell), watch)

    def run_async(self, source: str, **options: Unpack[CellOptions]) -> RunningCell:
        """As `run`, without waiting: names are taken as they are now, errors come with `result()`."""
        cell = Cell(source, **options)
        with ExitStack() as while_it_runs:
            while_it_runs.enter_context(self._to_itself())
            messages, notes = self._prepare(cell)
            rest = while_it_runs.pop_all()

        def work() -> CellResult:
            with rest:
                return self._perform(cell, messages, notes, None)

        return RunningCell(work, self.interrupt, self.ranks)

    def _give(self, values: Mapping[str, Any], ranks: Sequence[int] | None, timeout: float) -> None:
        with self._to_itself():
            self._begin()
        self._sender.remember(values)
        self.run("", ranks=ranks, timeout=timeout, names=values, push=tuple(values))

    def _prepare(self, cell: Cell) -> tuple[dict[int, dict[str, Any]], list[str]]:
        """A cell's message to each rank, with what it needs of the notebook; sentences on what is kept."""
        chosen, source, file = self._chosen(cell.ranks), cell.source, cell.file
        self._begin()
        self._offer = None
        notes = self._settle(cell, cell.names, chosen) if cell.names is not None else []
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        message = {"do": "cell", "source": source, "file": file, "reload": cell.reload}
        folder = self._running_job().run.directory if self.nodes == 1 else None
        packs = {rank: self._offer.pack(rank, folder) if self._offer is not None else None for rank in chosen}
        distinct = {id(pack): {**message, "names": pack} for pack in packs.values()}
        return {rank: distinct[id(pack)] for rank, pack in packs.items()}, notes

    def _settle(self, cell: Cell, names: Mapping[str, Any], ranks: Sequence[int]) -> list[str]:
        """Find out what the ranks are to get of the notebook; sentences on what they keep instead."""
        offer = self._offer = self._sender.offer(needed_names(cell.source, cell.file), names, cell.push)
        questions = {rank: question for rank in ranks if (question := offer.question(rank)) is not None}
        messages = {rank: {"do": "names", **question} for rank, question in questions.items()}
        answers = self._exchange(messages, 60, None) if messages else {}
        if messages and self._open_line().interrupted:
            raise error_for(Diagnosis("interrupted", "the cell was interrupted before it ran"), [])
        try:
            return offer.decide(answers)
        except CannotSend as problem:
            told = Diagnosis("error", problem.refusal.why, hint=problem.refusal.hint)
            raise error_for(told, []) from None

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 60, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; what each returned."""
        return self._call(function, args, kwargs, range(self.ranks), timeout)

    def _call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        ranks: Sequence[int],
        timeout: float,
    ) -> list[Any]:
        check_timeout(timeout)
        payload = api.pickle_call(function, args, kwargs)
        message = {"do": "call", "payload": payload, "limit": self._request.max_result_bytes}
        with self._to_itself():
            self._begin()
            paths = [result_path(self._running_job().run.directory, rank) for rank in ranks]
            try:
                self._round(dict.fromkeys(ranks, message), timeout, None)
                return [pickle.loads(path.read_bytes()) for path in paths]
            finally:
                for path in paths:  # up to half a GiB each, until the next call or the session's end
                    path.unlink(missing_ok=True)

    def debug(self, rank: int | None = None, command: str | None = None) -> str:
        """What pdb says to a command ("w", "p x", "u") in the frames where a rank (None: the first) failed.

        Without a command: what failed, and where. Until the next cell all ranks stay as they were then.
        NotNow when no cell has failed; else as `FailedRanks.command`.
        """
        with self._to_itself():
            if self._failed is None:
                raise NotNow("no cell has failed on ranks since the last that did not")
            try:
                return self._failed.command(rank, command)
            except LaunchError:
                if not self._failed.held:
                    self._job = None
                self._failed = None
                raise

    def record(self) -> Record:
        """What the ranks did in the last cell or call, those that had it; times from its start.

        NotNow where there was none since they began.
        """
        with self._to_itself():
            if self._job is None or not self._ran:
                raise NotNow("no cell has run on these ranks; what earlier ones did went with them")
            self._connect()
            run = self._running_job().run
            paths = [records_path(run.directory, rank) for rank in range(self.ranks)]
            for path in paths:  # those who had no part in it have none
                path.unlink(missing_ok=True)
            self._round({rank: {"do": "records"} for rank in self._ran}, 60, None)
        return read_records(paths, run.clocks(), run.nodes)

    def _chosen(self, ranks: Sequence[int] | None) -> Sequence[int]:
        if ranks is not None and not ranks:
            raise ValueError(f"ranks= is empty: the session has ranks 0 to {self.ranks - 1}")
        wrong = [rank for rank in ranks or () if not 0 <= rank < self.ranks]
        if wrong:
            raise ValueError(f"there is no rank {wrong[0]}: the session has ranks 0 to {self.ranks - 1}")
        return range(self.ranks) if ranks is None else sorted(set(ranks))

    def _exchange(
        self, messages: Mapping[int, dict[str, Any]], timeout: float, watch: CellWatcher | None
    ) -> dict[int, dict[str, Any]]:
        """Send each rank its message, and collect their answers."""
        line, ranks = self._open_line(), list(messages)
        trouble: list[Exception] = []  # of `watch`: told when all answers are in, or the next cell had them

        def look(answers: Mapping[int, dict[str, Any]]) -> None:
            if watch is not None and not trouble:
                try:
                    watch(self._result(ranks, answers, self._positions))
                except Exception as error:
                    trouble.append(error)

        with self._replaced_when_lost():
            answers = line.exchange(messages, timeout, self._heard, look)
        if trouble:
            raise trouble[0]
        return answers

    def _perform(
        self,
        cell: Cell,
        messages: Mapping[int, dict[str, Any]],
        notes: Sequence[str],
        watch: CellWatcher | None,
    ) -> CellResult:
        """Run a prepared cell; the notes go with its result, or with its error."""
        self.failure = self.until_failure = None
        try:
            return replace(self._round(messages, cell.timeout, watch), notes=tuple(notes))
        except LaunchError as error:
            for note in (*notes, *unmentioned(error, cell.names or {})):
                error.add_note(note)
            self.failure = error
            raise
        finally:
            if self._offer is not None:
                self._offer.close()

    def _round(
        self, messages: Mapping[int, dict[str, Any]], timeout: float, watch: CellWatcher | None
    ) -> CellResult:
        """Have ranks do something, and collect what they say and print."""
        self._ran = list(messages)
        positions = self._positions = self._running_job().output_positions()
        started = time.monotonic()
        answers = self._exchange(messages, timeout, watch)
        result = self._result(list(messages), answers, positions)
        result.wall_seconds = time.monotonic() - started
        printed = [result.output.get(rank, "") for rank in range(self.ranks)]
        error = error_of(answers, self._running_job(), printed)
        if error is None and (wrong := self._ledger.disagreement()):
            raise disagreement(wrong, printed)
        if error is not None:
            self._ledger.forget()
            self.until_failure = result
            self._failed = FailedRanks(self._running_job(), self._open_line(), failed_of(answers), held=False)
            raise error
        if self._open_line().too_late:  # who interrupts a loop of short cells means those that follow
            told = Diagnosis(
                "interrupted", "the notebook was interrupted when the ranks were done with the cell"
            )
            raise error_for(told, printed)
        return result

    def _heard(self, rank: int, answer: Mapping[str, Any]) -> None:
        """Note what the rank has taken of the notebook, and what it no longer has."""
        if self._offer is not None and answer.get("took"):
            self._offer.taken(rank)
        if "called" in answer:
            self._ledger.add(rank, answer["called"])
        if "lost" in answer:
            self._sender.lost(rank, **answer["lost"])

    def _result(
        self, ranks: Sequence[int], answers: Mapping[int, dict[str, Any]], positions: list[int]
    ) -> CellResult:
        job = self._running_job()
        return result_of(ranks, answers, job.new_output(list(positions)), job.nodes)


def session(
    ranks: int | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | None = None,
    nodes: int = 1,
    seed: int | None = None,
    queue: float | None = None,
    instead_of: Session | None = None,
) -> Session:
    """Ranks that stay alive: `session.run("x = 1")`, `session.run("x")`, `session.call(fn, 2)`.

    nodes: over how many machines of a Slurm cluster they are spread; seed: for their random numbers; queue:
    seconds to wait for one's turn there; all as in `launch`. instead_of: a session to stop, but not where
    ValueError says that the new ranks cannot be had.
    """
    wanted = Wanted(ranks, backend, env=env or {}, seed=seed, queue=queue)
    return Session(api.place_for(nodes), wanted, instead_of)
