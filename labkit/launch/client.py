"""The notebook's side of the engine: start it, hand it jobs, hear how they end, notice when it is gone."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path

from labkit import hosts, processes
from labkit.launch.failure.errors import Diagnosis, InfrastructureError
from labkit.launch.handover import directory
from labkit.launch.handover.owner import OWNER

_MESSAGE_BYTES = 65536
_MOST_WORDS = 2000  # characters
_ROOM = (
    "make room for temporary files, or set TMPDIR to a directory that has some; or raise the limit of open "
    "files, of processes or of memory, where that is what is said"
)
_START = "import sys; sys.path[:0] = [{root!r}]; from labkit.launch.engine.forkserver import main; main()"


class EngineGone(ConnectionError):
    """The engine ended without being asked to."""


class EngineProcess:
    """One engine and the private directory that its jobs live in."""

    def __init__(self) -> None:
        """InfrastructureError where there can be none."""
        if problem := hosts.wrong_system():
            raise InfrastructureError(Diagnosis("infrastructure", problem))
        self.owner = os.getpid()
        self._ended: dict[str, int] = {}
        self._count = 0
        self._lock = threading.RLock()
        try:
            self._begin()
        except OSError as error:
            summary = f"the launcher's engine process cannot be started: {error}"
            raise InfrastructureError(Diagnosis("infrastructure", summary, hint=_ROOM)) from error
        atexit.register(self.close)

    def _begin(self) -> None:
        with contextlib.ExitStack() as undo:
            self.directory = directory.create()
            undo.callback(directory.remove, self.directory)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._control.close)
            with theirs:
                self._process = self._start(theirs.fileno())
            undo.pop_all()

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-P", "-c", _START.format(root=root)]
        with open(self.directory / "engine.log", "wb") as log:
            return subprocess.Popen(
                [*command, str(descriptor), str(self.directory), str(self.owner)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self.directory),
                start_new_session=True,  # the kernel's SIGINT is not for it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def new_job(self) -> Path:
        """A fresh directory for one job."""
        with self._lock:
            self._count += 1
            path = self.directory / f"job{self._count}"
        path.mkdir(mode=0o700)
        return path

    def run(self, job: Path) -> None:
        """Start the job whose request is in the directory. EngineGone when there is no engine any more."""
        self._send({"do": "run", "job": job.name})

    def kill(self, job: Path) -> None:
        """End a job the hard way."""
        self._send({"do": "kill", "job": job.name})

    def ended(self, job: Path, timeout: float) -> int | None:
        """The exit code of the job's agent, waiting `timeout` seconds at most; None while it runs."""
        with self._lock:
            until = time.monotonic() + timeout
            while job.name not in self._ended:
                if not wait([self._control], max(0.0, until - time.monotonic())):
                    self._wake()
                    return None
                self._hear()
            return self._ended[job.name]

    def forget(self, job: Path) -> None:
        """Nobody will ask for this job again: have its directory removed when it has ended."""
        self._send({"do": "forget", "job": job.name})

    def alive(self) -> bool:
        """Whether the engine runs, has its directory, and this process is the one that started it."""
        there = self._process.poll() is None and (self.directory / OWNER).exists()
        return self.owner == os.getpid() and there

    def _wake(self) -> None:
        """Have an engine that somebody stopped (SIGSTOP) go on."""
        if processes.is_stopped(self.pid):
            processes.send(self.pid, signal.SIGCONT)

    def last_words(self) -> str:
        """The end of what the engine and its agents wrote to stderr."""
        with contextlib.suppress(OSError):
            words = (self.directory / "engine.log").read_text(errors="replace").strip()
            return words if len(words) <= _MOST_WORDS else "… " + words[-_MOST_WORDS:].partition("\n")[2]
        return ""

    def close(self) -> None:
        """Ask the engine to end everything, and make sure."""
        if self.owner != os.getpid():
            return
        atexit.unregister(self.close)
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        directory.remove(self.directory)

    def bury(self) -> int:
        """The engine died: end what it left. Returns its exit status, or minus the signal."""
        atexit.unregister(self.close)
        self._process.kill()
        code = self._process.wait()
        self._control.close()
        processes.sweep(str(self.directory))
        directory.remove(self.directory)
        return code

    def _send(self, message: dict[str, str]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError as error:
            raise EngineGone(str(error)) from error

    def _hear(self) -> None:
        try:
            raw = self._control.recv(_MESSAGE_BYTES)
        except OSError as error:
            raise EngineGone(str(error)) from error
        if not raw:
            raise EngineGone("the engine closed the connection")
        message = json.loads(raw)
        if message["event"] == "ended":
            self._ended[message["job"]] = message["code"]


def _environment(path: Path) -> dict[str, str]:
    """The notebook's environment with the engine's mark, and what keeps CUDA and OpenMP threads asleep."""
    return {
        **os.environ,
        **_cheap_forks(),
        processes.ENGINE_MARK: str(path),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }


def _cheap_forks() -> dict[str, str]:
    """Have the C library's part of the engine's memory in huge pages, where there are any: a fork copies the
    tables of pages, of which there are 512 times fewer. glibc takes the hint since 2.35.

    Python's own allocator does not take it, and stays all the same: checks weigh what ranks keep, which is
    tensors and arrays, and not what Python needs for its objects or has in lists of free blocks.
    """
    with contextlib.suppress(OSError):
        if "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
            return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return {}


# The engine serves the whole process, however many notebook cells and threads launch jobs.
_engine_of_this_process: list[EngineProcess] = []
_starting = threading.Lock()


def engine() -> EngineProcess:
    """The engine of this process, started if there is none that runs. It takes a second or two to import
    torch, during which jobs may already be handed over."""
    with _starting:
        if running := running_engine():
            return running
        for held in _engine_of_this_process:
            if held.owner == os.getpid():
                held.bury()
        _engine_of_this_process[:] = [EngineProcess()]
        return _engine_of_this_process[0]


def running_engine() -> EngineProcess | None:
    """The engine of this process if there is one that runs; none is started."""
    return next((held for held in _engine_of_this_process if held.alive()), None)


def shut_down() -> None:
    """End the engine and every job of this process, if any; the next launch starts a new one."""
    with _starting:
        while _engine_of_this_process:
            _engine_of_this_process.pop().close()
