"""Ranks on this machine: jobs of the engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from labkit import hosts
from labkit.launch import client
from labkit.launch.engine.facts import read_verdict
from labkit.launch.failure.errors import Diagnosis, InfrastructureError
from labkit.launch.handover import session_wire
from labkit.launch.handover.directory import remove
from labkit.launch.handover.pickling import current_folder, import_path
from labkit.launch.handover.request import CONTROL, PAYLOAD, VERDICT, Request, Wanted, state_path
from labkit.launch.handover.reserved import reserve
from labkit.record.state import HOLD, PHASES, STARTING, ControlPage, State, StatePage

_PATIENCE = 10.0  # seconds after the deadline until the agent itself is no longer trusted to end the job
_ORDERLY = 2.0  # seconds the agent gets to end a job that was told to stop


class Here:
    """This machine."""

    nodes = 1
    patience = 60.0  # the engine may have to import torch
    parting = 2.0
    session_target = "labkit.launch.engine.session_rank:serve"

    def plan(self, wanted: Wanted) -> tuple[Request, tuple[str, ...]]:
        if wanted.queue is not None:
            raise ValueError("queue is for ranks on several nodes of a cluster (nodes=): here nothing queues")
        env = {**({} if wanted.gpus else {"CUDA_VISIBLE_DEVICES": ""}), **wanted.env}
        backend = wanted.backend if wanted.gpus else "gloo"
        placement = hosts.choose_placement(wanted.ranks, backend, {**os.environ, **env})
        request = Request(
            ranks=placement.ranks,
            backend=placement.backend,
            timeout=wanted.timeout,
            env=env,
            record=wanted.record,
            cwd=current_folder(),
            sys_path=import_path(),
            devices=list(placement.devices) if wanted.gpus else [],
            threads=placement.threads,
            imports=list(wanted.imports),
            seed=wanted.seed,
            key=secrets.token_hex(16),
        )
        return request, placement.notes

    def start(self, request: Request, payload: bytes, prepare: Callable[[Path], None]) -> EngineRun:
        """Raises InfrastructureError when the job's directory cannot be written, or engines end at once."""
        engine = client.engine()
        try:
            return _start(engine, request, payload, prepare)
        except client.EngineGone:  # it was ended since it was last used: the next one is as good
            engine.bury()
        try:
            return _start(client.engine(), request, payload, prepare)
        except client.EngineGone as error:
            summary = f"the launcher's engine process ended twice before it took a job: {error}"
            hint = "see whether something ends processes here, a limit of memory say, and launch again"
            raise InfrastructureError(Diagnosis("infrastructure", summary, hint=hint)) from error

    def listen(self, directory: Path) -> session_wire.Listener:
        return session_wire.Listener(directory)


class EngineRun:
    """A job of an engine."""

    nodes: list[str] = []  # noqa: RUF012  it has none, and nobody changes that

    def __init__(self, engine: client.EngineProcess, directory: Path, request: Request) -> None:
        self.request, self.directory = request, directory
        self._engine = engine
        self._deadline = time.monotonic() + request.timeout if request.timeout else float("inf")
        self._control = ControlPage(directory / CONTROL)
        self._control.set_deadline(self._deadline if request.timeout else 0.0, request.timeout)
        self._kill_at = self._deadline + _PATIENCE
        self._closed = False
        self._stopped = ""  # why we had it stop

    def ended(self, timeout: float) -> Diagnosis | None:
        try:
            code = self._engine.ended(self.directory, timeout)
            if code is None and time.monotonic() > self._kill_at:
                self._engine.kill(self.directory)
        except client.EngineGone:
            return self._engine_gone()
        return None if code is None else read_verdict(self.directory) or self._no_verdict(code)

    def stop(self, reason: str) -> None:
        self._control.stop(reason)
        self._stopped = reason
        self._kill_at = min(self._kill_at, time.monotonic() + _ORDERLY)

    def hold(self) -> Diagnosis | None:
        self._control.stop(HOLD)
        until = time.monotonic() + _ORDERLY
        with session_wire.interrupts_later():
            while (told := read_verdict(self.directory)) is None and time.monotonic() < until:
                time.sleep(0.005)
        return told

    def queued(self) -> bool:
        return False

    def standing(self) -> str:
        return "running"

    def abandon(self) -> None:
        """See `place.Run.abandon`."""
        if not self._closed:
            with contextlib.suppress(client.EngineGone):
                self._engine.forget(self.directory)

    def set_deadline(self, seconds: float) -> None:
        self._kill_at = time.monotonic() + seconds + _PATIENCE if seconds else float("inf")
        self._control.set_deadline(time.monotonic() + seconds if seconds else 0.0, seconds)

    def interrupt(self, pids: Mapping[int, int]) -> None:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def state(self, rank: int) -> State:
        with self._page(rank) as page:
            return page.read() if page is not None else State(PHASES[STARTING])

    def progress(self) -> list[tuple[float, float, str]]:
        found = []
        for rank in range(self.request.ranks):
            with self._page(rank) as page:
                found.append(page.progress() if page is not None else (0.0, 0.0, ""))
        return found

    def clocks(self) -> list[float]:
        return [0.0] * self.request.ranks

    def close(self) -> None:
        self._closed = True
        self._control.close()
        remove(self.directory)

    @contextlib.contextmanager
    def _page(self, rank: int) -> Iterator[StatePage | None]:
        """The rank's page; None as long as it has not made one."""
        try:
            page = StatePage(state_path(self.directory, rank))
        except (OSError, ValueError):
            yield None
            return
        try:
            yield page
        finally:
            page.close()

    def _no_verdict(self, code: int) -> Diagnosis:
        if self._stopped in ("interrupted", "cancelled"):  # before there was anybody to write that down
            return Diagnosis(self._stopped, f"the job was {self._stopped}", reason=self._stopped)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = self._engine.last_words()
        summary = f"the job's agent ended without a report ({how})" + (f": {words}" if words else "")
        return Diagnosis("infrastructure", summary, hint="launch again; your code is not to blame")

    def _engine_gone(self) -> Diagnosis:
        words = self._engine.last_words()
        how = "failed" if self._engine.bury() > 0 else "was ended from outside"
        summary = f"the launcher's engine process {how}" + (f": {words}" if words else "")
        return Diagnosis("infrastructure", summary, hint="launch again: a new engine starts by itself")


def _start(
    engine: client.EngineProcess, request: Request, payload: bytes, prepare: Callable[[Path], None]
) -> EngineRun:
    run = _write(engine, request, payload)
    try:
        prepare(run.directory)
    except BaseException:
        run.close()
        raise
    try:
        engine.run(run.directory)
    except client.EngineGone:
        run.close()
        raise
    except KeyboardInterrupt:  # whether or not the engine has heard of the job by now
        run.stop("cancelled")
        until = time.monotonic() + 2 * _ORDERLY
        while run.ended(0.05) is None and time.monotonic() < until:
            pass
        run.close()
        raise
    return run


def _write(engine: client.EngineProcess, request: Request, payload: bytes) -> EngineRun:
    directory = engine.directory
    try:
        directory = engine.new_job()
        reserve(directory / VERDICT)
        request.write(directory)
        (directory / PAYLOAD).write_bytes(payload)
        return EngineRun(engine, directory, request)
    except OSError as error:
        if directory != engine.directory:
            remove(directory)
        summary = f"the job's directory {directory} cannot be written: {error.strerror}"
        hint = "free some space there, or set TMPDIR to a directory with room"
        raise InfrastructureError(Diagnosis("infrastructure", summary, hint=hint)) from error
