"""`launch`: a function on ranks, from a notebook cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.launch import client, hosts
from labkit.launch.failure.errors import Diagnosis, RankError
from labkit.launch.handover.directory import remove
from labkit.launch.handover.pickling import dumps, find_unsendable
from labkit.launch.handover.request import PAYLOAD, VERDICT, Request
from labkit.launch.handover.reserved import reserve
from labkit.launch.job import Job, job_directory_full


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 60,
    backend: str | None = None,
    env: dict[str, str] | None = None,
    record: bool = True,
    wait: bool = True,
    **kwargs: Any,
) -> Job:
    """Run `fn(*args, **kwargs)` on every rank of a fresh torchrun job, and wait for it.

    fn may be defined in the notebook, with everything it refers to. The default process group is initialised
    when it starts; a parameter of it named `group` that is not given receives that group.

    ranks: how many; None takes one a GPU, or 4 where there is none. nodes: over how many machines of a Slurm
    cluster they are spread evenly: those of the job that the notebook is in, or else of a job that is
    submitted (see cluster/README.md). timeout: seconds until the job is ended, from when it runs.
    backend: "gloo" or "nccl"; None chooses. env: more environment variables for the ranks. record: whether to
    record communication and spans. wait: False returns at once, with the job running (`job.wait()`,
    `job.cancel()`).

    Raises a LaunchError that says which rank failed, where and why.
    """
    job = start(
        fn, args, kwargs, ranks=ranks, nodes=nodes, timeout=timeout, backend=backend, env=env, record=record
    )
    if not wait:
        return job
    from labkit.launch.live import watcher

    return job.wait(watcher())


def start(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    ranks: int | None = None,
    nodes: int = 1,
    timeout: float = 60,
    backend: str | None = None,
    env: dict[str, str] | None = None,
    record: bool = True,
    imports: Sequence[str] = (),
) -> Job:
    """As `launch`, without waiting and without showing anything.

    imports: modules that every rank will import; on this machine the engine does it once for all.
    """
    _check(fn, ranks, nodes, timeout)
    if nodes > 1:
        from labkit.launch.nodes import start as on_nodes

        request = on_nodes.plan(ranks, nodes, timeout, backend, env or {}, record)
        return on_nodes.submit(request, pickle_call(fn, args, kwargs or {}))
    placement = hosts.place(ranks, backend)
    payload = pickle_call(fn, args, kwargs or {})
    request = Request(
        ranks=placement.ranks, backend=placement.backend, timeout=timeout, env=env or {}, record=record,
        cwd=os.getcwd(), sys_path=import_path(), devices=list(placement.devices), threads=placement.threads,
        imports=list(imports),
    )  # fmt: skip
    job = submit(request, payload)
    job.notes += placement.notes
    return job


def submit(request: Request, payload: bytes, prepare: Callable[[Path], None] | None = None) -> Job:
    """Hand a request to the engine; `prepare` is called with the job's directory before it starts."""
    for attempt in range(2):
        engine = client.engine()
        try:
            job = _write(engine, request, payload)
            try:
                if prepare is not None:
                    prepare(job._directory)
                engine.run(job._directory)
            except KeyboardInterrupt:
                job.cancel()
                raise
            return job
        except client.EngineGone:  # it was ended since it was last used: the next one is as good
            if attempt:
                raise
    raise AssertionError


def _write(engine: client.EngineProcess, request: Request, payload: bytes) -> Job:
    directory = engine.directory
    try:
        directory = engine.new_job()
        reserve(directory / VERDICT)
        request.write(directory)
        (directory / PAYLOAD).write_bytes(payload)
        return Job(engine, directory, request)
    except OSError as error:
        if directory != engine.directory:
            remove(directory)
        raise job_directory_full(directory, error) from error


def _check(fn: object, ranks: int | None, nodes: int, timeout: float) -> None:
    if not callable(fn):
        raise TypeError(f"launch expects a function to run on the ranks, found {type(fn).__name__}: {fn!r}")
    if ranks is not None and (not isinstance(ranks, int) or not 1 <= ranks <= 512):
        raise ValueError(f"ranks must be a whole number from 1 to 512, found {ranks!r}")
    if not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes must be a whole number from 1, found {nodes!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, found {timeout!r}")


def pickle_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call as the ranks unpickle it. RankError names the part that cannot be sent."""
    try:
        return dumps((fn, args, kwargs))
    except Exception as error:
        where, part = find_unsendable(fn, args, kwargs)
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        summary = f"{where} cannot be sent to the ranks: it is a {kind} ({error})"
        hint = "create it inside the function, on each rank, instead of outside"
        raise RankError(Diagnosis("error", summary, hint=hint)) from None


def import_path() -> list[str]:
    """The notebook's import path with the current directory spelled out."""
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]
