"""One rank: set up the process and its process group, call the function, report. Forked from the agent."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import multiprocessing.util
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist

from labkit.launch.engine.forks import forks_end_here
from labkit.launch.engine.proof import prove_in_groups
from labkit.launch.engine.raised import describe_error
from labkit.launch.engine.signed_store import SignedStore
from labkit.launch.engine.streams import flush_output, flush_what_fits, redirect_output
from labkit.launch.engine.targets import load_target
from labkit.launch.handover import results
from labkit.launch.handover.request import (
    STORE,
    Request,
    end_path,
    log_path,
    records_path,
    result_path,
    stack_path,
    state_path,
)
from labkit.launch.handover.reserved import reserve, write_reserved
from labkit.processes import die_with_parent
from labkit.record.current import use_recorder
from labkit.record.files import write_records
from labkit.record.over_nccl import RecorderOverNccl, install_over_nccl
from labkit.record.recorder import Recorder, install
from labkit.record.state import FAILED, FINISHED, RUNNING, STARTING, StatePage
from labkit.torch_private_distributed import ENABLE_FLIGHT_RECORDER
from labkit.torch_private_gpu import when_cuda_begins


def run_rank(directory: str, agent: int, bell: int) -> int:
    """What torch's elastic agent calls on every rank. Returns 1 to the agent; a failure ends the process."""
    die_with_parent(agent)
    rank = int(os.environ["RANK"])
    multiprocessing.util.Finalize(
        None, os._exit, args=(0,), exitpriority=1000
    )  # threads left over: not waited for
    worker = _Worker(Path(directory), rank, bell)
    try:
        worker.run()
    except BaseException as error:
        worker.fail(error)
    worker.finish()
    return 1


class _Worker:
    def __init__(self, directory: Path, rank: int, bell: int) -> None:
        self.directory, self.rank, self._bell = directory, rank, bell
        self.request = Request.read(directory)
        self.page = StatePage(state_path(directory, rank), create=True)
        reserve(end_path(directory, rank))
        _default_signals()
        redirect_output(log_path(directory, rank))
        self._stacks = open(stack_path(directory, rank), "w")  # noqa: SIM115  open for the process's life
        faulthandler.enable(self._stacks, all_threads=True)
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=True)
        self.page.enter(STARTING)
        self.recorder = _recorder(self.request.backend, rank, self.page)
        self._entered = 0.0
        self._joining = False  # whether it is about to meet the other ranks

    def run(self) -> None:
        request = self.request
        _prepare(request, self.rank)
        self._joining = True
        self._store = _store(self.directory, request, self.rank)  # torch alone keeps no store in Python alive
        group = _join(self._store, request, self.rank)
        self._joining = False
        if request.record:
            use_recorder(self.recorder)
            _install(self.recorder)
        function, args, kwargs = load_target(self.directory, request.target)
        self.page.enter(RUNNING)
        self._entered = time.monotonic()
        with forks_end_here():
            value = function(*args, **_with_group(function, args, kwargs, group))
        if request.target == "payload":
            results.write(value, result_path(self.directory, self.rank), request.max_result_bytes)
        self._write_records()
        flush_output()

    def finish(self) -> None:
        """Everything is written: say so, and let go of the GPU."""
        write_reserved(end_path(self.directory, self.rank), {"rank": self.rank, "state": "finished"})
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.destroy_process_group()
        self.page.enter(FINISHED)
        os.write(self._bell, b".")

    def fail(self, error: BaseException) -> None:
        """Report how the function ended and leave; the agent ends the other ranks."""
        try:
            end = {"rank": self.rank, "state": "failed", "time": time.monotonic(), **describe_error(error)}
            end["waiting"] = self.page.read().phase == "waiting"
            end["joining"] = self._joining
            flush_what_fits()
            write_reserved(end_path(self.directory, self.rank), end)
            self._write_records()
        finally:
            self.page.enter(FAILED)
            os.write(self._bell, b".")
            os._exit(1)

    def _write_records(self) -> None:
        if self.request.record:
            write_records(records_path(self.directory, self.rank), self.recorder, self._entered)


def _recorder(backend: str, rank: int, page: StatePage) -> Recorder:
    return RecorderOverNccl(rank, page) if backend == "nccl" else Recorder(rank, page)


def _install(recorder: Recorder) -> None:
    if isinstance(recorder, RecorderOverNccl):
        install_over_nccl(recorder)
    else:
        install(recorder)


def _default_signals() -> None:
    """The agent's handlers were inherited by the fork; a rank ends on SIGTERM at once, wherever it is."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _prepare(request: Request, rank: int) -> None:
    """Make the process look like the notebook's: environment, directory, import path, device, threads."""
    os.environ.update(ENABLE_FLIGHT_RECORDER if request.record else {})
    os.environ.update(request.env)
    tempfile.tempdir = None  # the engine has looked for it already; the job may have another TMPDIR
    _talk_within_the_machine(request)
    os.chdir(request.cwd)
    sys.path[:] = request.sys_path or sys.path
    torch.set_num_threads(request.threads)
    if request.devices:
        _take_device(request.devices[rank], request.backend)
    _seed(request.seed, rank)
    gc.enable()


def _talk_within_the_machine(request: Request) -> None:
    """Have gloo use the loopback where that reaches every rank, whatever a cluster has set for several nodes.
    Else it looks up the machine's own name, and listens where others can reach it.
    """
    placed = STORE in os.environ  # by somebody who has told gloo too
    if request.nodes == 1 and not placed and "GLOO_SOCKET_IFNAME" not in request.env:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _take_device(device: int, backend: str) -> None:
    """Make a GPU this rank's. Ranks that talk over gloo may never use it, and then leave CUDA asleep: to wake
    it takes seconds, and half a GiB of the GPU.
    """
    if backend == "nccl":
        torch.cuda.set_device(device)
    else:
        when_cuda_begins(lambda: torch.cuda.set_device(device))


def _seed(seed: int | None, rank: int) -> None:
    """Random numbers of this rank's own: ranks are forks of one process, whose generators they would share.

    CUDA's generators need nothing: a process makes and seeds them when it first uses CUDA.
    """
    if seed is None:
        torch.default_generator.seed()
        random.seed()
        if "numpy.random" in sys.modules:  # else it seeds itself when it is imported
            numpy.random.seed()
    else:
        torch.manual_seed(seed + rank)
        random.seed(seed + rank)
        numpy.random.seed((seed + rank) % 2**32)


def _join(store: dist.Store, request: Request, rank: int) -> dist.ProcessGroup:
    """Initialise the default process group."""
    patience = timedelta(
        seconds=(request.timeout or 86400) + 60
    )  # the watchdog's verdict comes before torch's
    if request.key:
        prove_in_groups(request.key)
    device = torch.device("cuda", request.devices[rank]) if request.backend == "nccl" else None
    dist.init_process_group(
        request.backend, store=store, rank=rank, world_size=request.ranks, timeout=patience, device_id=device
    )
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def _store(directory: Path, request: Request, rank: int) -> dist.Store:
    """Where the ranks meet."""
    if STORE in os.environ:
        return _settled_store(request.ranks, rank)
    return _agents_store(request) if request.nodes > 1 else _own_store(directory, request.ranks)


def _own_store(directory: Path, ranks: int) -> dist.Store:
    """A store in a file of the job's private directory: no port that other users of the machine can reach.

    Nor is a name server asked, as torch's TCPStore does for the name of 127.0.0.1, and waits 5 s for.
    """
    return dist.FileStore(str(directory / "store"), ranks)


def _settled_store(ranks: int, rank: int) -> dist.Store:
    """A store at an address that is known to all ranks; rank 0 has the open socket that listens there."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank > 0:
        return dist.TCPStore(address, port, ranks, False, wait_for_workers=False)
    socket = int(os.environ[STORE])
    return dist.TCPStore(address, port, ranks, True, wait_for_workers=False, master_listen_fd=socket)


def _agents_store(request: Request) -> dist.Store:
    """The store that the agents of several nodes share; torch's agent has said where it is.

    NCCL asks its store from threads of its own, which a store in Python would have wait for the rank's.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore("ranks", dist.TCPStore(address, port, None, False, wait_for_workers=False))
    return SignedStore(store, request.key) if request.backend == "gloo" else store


def _with_group(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], group: dist.ProcessGroup
) -> dict[str, Any]:
    """kwargs, with the world's group for a parameter named `group` that nobody gave."""
    try:
        signature = inspect.signature(function)
        if (
            "group" in signature.parameters
            and "group" not in signature.bind_partial(*args, **kwargs).arguments
        ):
            return {**kwargs, "group": group}
    except (TypeError, ValueError):
        pass  # no signature, or wrong arguments: the call itself will say so
    return kwargs
