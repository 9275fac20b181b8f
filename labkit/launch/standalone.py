"""Jobs without a notebook: from a shell, or inside a sandbox. All a job leaves is files in its directory.

    python -m labkit.launch.standalone DIRECTORY --ranks 4 --timeout 20 -- module:function
    python -m labkit.launch.standalone --serve      (requests on stdin, one JSON object a line; see `serve`)

Every rank calls `function(DIRECTORY)`. Afterwards DIRECTORY holds, besides what the function wrote there:
job.json (the verdict), and for each rank rankN.log, rankN.status.json and rankN.records.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TextIO

import click

from labkit import processes
from labkit.hosts import choose_placement
from labkit.launch.engine.forkserver import gpus_taken, import_the_rest, warm_up
from labkit.launch.engine.gpu_lock import GpuLocks, device_names
from labkit.launch.handover.request import CONTROL, RANK, VERDICT, Request, Wanted
from labkit.launch.handover.reserved import read_reserved, reserve, write_reserved
from labkit.record.state import ControlPage

_PATIENCE = 10.0  # seconds after the deadline until the agent is ended with its job


def run(
    directory: Path,
    target: str,
    ranks: int,
    timeout: float,
    backend: str | None = None,
    record: bool = True,
    rank: str = RANK,
    outlive: Collection[int] = (),
) -> dict[str, Any]:
    """Run one job in a fork of this process, which must be warm and single-threaded, and wait for its end.
    rank: see `Request`. outlive: children of this process that are not ended with the job.

    Returns {"directory", "verdict", "seconds"}; the verdict is "finished", one of `LaunchError.verdict`, and
    "infrastructure" when the job left no report or others have its GPUs. ValueError for ranks, a timeout or a
    backend that cannot be; FileExistsError when the directory has had a job; OSError when nothing can be
    written there, or no process or lock be had.
    """
    if (directory / VERDICT).exists():
        raise FileExistsError(f"{directory} has had a job already: give each job a directory of its own")
    wanted = Wanted(ranks, backend, timeout)
    placement = choose_placement(wanted.ranks, wanted.backend)
    started = time.monotonic()
    request = Request(
        ranks=ranks,
        backend=placement.backend,
        timeout=timeout,
        target=target,
        record=record,
        cwd=os.getcwd(),
        sys_path=sys.path,
        devices=list(placement.devices),
        threads=placement.threads,
        rank=rank,
    )
    request.write(directory)
    reserve(directory / VERDICT)
    locks, gpus = GpuLocks(), device_names(request.devices, os.environ)
    if taken := locks.take(gpus):
        write_reserved(directory / VERDICT, gpus_taken(taken))
    else:
        try:
            _run_forked(directory, started + timeout, timeout)
            processes.end_children(outlive)
        finally:
            locks.give_back(gpus)
    found = read_reserved(directory / VERDICT)
    verdict = found["verdict"] if found else "infrastructure"
    return {"directory": str(directory), "verdict": verdict, "seconds": time.monotonic() - started}


def _run_forked(directory: Path, deadline: float, timeout: float) -> None:
    from labkit.launch.engine.agent import fork_job  # torch, which `warm_up` imports as forks need it

    with contextlib.closing(ControlPage(directory / CONTROL)) as control:
        control.set_deadline(deadline, timeout)
        _wait(fork_job(directory), deadline + _PATIENCE)


def _wait(agent: int, deadline: float) -> None:
    while os.waitpid(agent, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            processes.send(agent, signal.SIGKILL)
        time.sleep(0.003)


def serve(requests: Iterable[str], answers: TextIO) -> None:
    """Run jobs one after the other, all from one import of torch.

    requests: lines of JSON with the arguments of `run` ("directory", "target", "ranks", "timeout", and if
    wanted "backend", "record"). answers: gets one line of JSON for each, what `run` returns or {"error":
    TEXT}.
    """
    for line in requests:
        if not line.strip():
            continue
        try:
            order = json.loads(line)
            answer = run(**{**order, "directory": Path(order["directory"])})
        except (OSError, TypeError, KeyError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target", required=False)
@click.option("--ranks", default=2, show_default=True)
@click.option("--timeout", default=60.0, show_default=True, help="seconds until the job is ended")
@click.option(
    "--backend", type=click.Choice(["gloo", "nccl"]), help="default: nccl with enough GPUs, else gloo"
)
@click.option("--record/--no-record", default=True, show_default=True)
@click.option("--serve", "serving", is_flag=True, help="read requests from stdin")
def main(
    directory: Path | None,
    target: str | None,
    ranks: int,
    timeout: float,
    backend: str | None,
    record: bool,
    serving: bool,
) -> None:
    """Run TARGET, module:function, on every rank: a job without a notebook. All that it leaves is files in
    DIRECTORY.

    Exits 0 when every rank finished, and 3 when the job failed. With --serve, jobs are read from stdin.
    """
    if serving == (directory is not None):
        raise click.UsageError("give either DIRECTORY and TARGET, or --serve")
    processes.adopt_orphans()
    sys.path[:] = [os.path.abspath(entry or ".") for entry in sys.path]
    warm_up()
    if serving:
        import_the_rest()
        with contextlib.suppress(BrokenPipeError):
            serve(sys.stdin, sys.stdout)
        return
    if directory is None or target is None:
        raise click.UsageError("a TARGET is needed: module:function")
    try:
        answer = run(directory.resolve(), target, ranks, timeout, backend, record)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    print(json.dumps(answer))
    sys.exit(0 if answer["verdict"] == "finished" else 3)


if __name__ == "__main__":
    main()
