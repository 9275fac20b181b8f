"""The warm process that jobs are forked from. It imports torch, and then only forks, watches and cleans up.

Started by `client.EngineProcess` with one end of a socket pair. Messages are one JSON object each:

    to the engine    {"do": "run" | "kill" | "forget", "job": NAME}
    from the engine  {"event": "ready"} | {"event": "ended", "job": NAME, "code": CODE}

NAME is a directory inside the engine's directory. CODE is the agent's exit code, or minus the signal.
It leaves when its notebook does: when the socket closes, or when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit import processes
from labkit.launch.engine.begun import not_begun
from labkit.launch.engine.gpu_lock import GpuLocks, device_names
from labkit.launch.engine.heap import fill_gaps
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.environment import inherited
from labkit.launch.handover.request import VERDICT, Request
from labkit.launch.handover.reserved import write_reserved

MESSAGE_BYTES = 65536
_IDLE = 1000  # milliseconds without work after which there is time for more imports
_BUSY = 2  # jobs after which they are made without such a pause, as ranks that need them pay for them
_FOR_EVERY_JOB = (
    "labkit.launch.engine.agent",
    "labkit.launch.engine.worker",
    "labkit.launch.engine.session_rank",
    "labkit.record.native",
    "multiprocessing.popen_fork",
    "multiprocessing.queues",
    "numpy",
)
_FOR_THE_ENGINE = ("GLIBC_TUNABLES", "PYTHONUNBUFFERED")  # not for what ranks start


@dataclass(frozen=True)
class _Running:
    job: str
    gpus: list[str]


class Engine:
    """Serves one notebook. Single-threaded, and never computes: a fork then finds no lock taken."""

    def __init__(self, control: socket.socket, directory: Path, owner: int) -> None:
        self._control, self._directory = control, directory
        self._owner, self._owner_ended = owner, _told_of_end(owner)
        self._jobs: dict[int, _Running] = {}  # by pid of the agent
        self._forgotten: set[str] = set()  # jobs whose directories nobody will remove
        self._gpus = GpuLocks()
        self._complete = False  # whether everything that ranks may need is imported
        self._had = 0  # jobs that have ended
        self._poll = select.poll()
        self._children = _woken_by_children()
        for descriptor in (control.fileno(), self._children, self._owner_ended):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        """Until the notebook is gone; then end every job and remove the directory.

        An error of the engine's own ends the jobs too. The directory then stays for the notebook, which reads
        in the log what that was.
        """
        try:
            self._send({"event": "ready"})
            while self._turn():
                pass
        finally:
            self._end_jobs()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _turn(self) -> bool:
        idle, busy = not self._complete and not self._jobs, self._had >= _BUSY
        pause = _IDLE if idle or self._owner_ended is None else None
        events = dict(self._poll.poll(0 if idle and busy else pause))
        if idle and (busy or not events):
            import_the_rest()
            self._complete = True
        if self._children in events:
            os.read(self._children, 4096)
            for pid in [pid for pid in self._jobs if processes.has_ended(pid)]:
                self._ended(pid)
        if self._control.fileno() in events and not self._obey():
            return False
        return self._owner_ended not in events and os.getppid() == self._owner

    def _obey(self) -> bool:
        try:
            message = self._control.recv(MESSAGE_BYTES)
        except OSError:
            return False
        if not message:
            return False
        order = json.loads(message)
        if order["do"] == "run":
            self._run(order["job"])
        elif order["do"] == "forget":
            self._forget(order["job"])
        else:
            self._kill(order["job"])
        return True

    def _run(self, job: str) -> None:
        """Fork a job. One that cannot be begun ends alone: others run."""
        try:
            self._begin(job)
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk
                traceback.print_exc()
            self._refuse(job, not_begun(error))

    def _begin(self, job: str) -> None:
        from labkit.launch.engine.agent import fork_job

        directory = self._directory / job
        request = Request.read(directory)
        gpus = device_names(request.devices, {**os.environ, **request.env})
        if taken := self._gpus.take(gpus):
            self._refuse(job, gpus_taken(taken))
            return
        try:
            import_for_ranks(request.imports)
            pid = fork_job(directory, self._let_go)
        except BaseException:
            self._gpus.give_back(gpus)
            raise
        self._jobs[pid] = _Running(job, gpus)

    def _let_go(self) -> None:
        """In a fork: what would keep a GPU taken whose job has ended, and hide from the notebook that the
        engine has.
        """
        self._gpus.let_go()
        self._control.close()

    def _refuse(self, job: str, why: Diagnosis) -> None:
        with contextlib.suppress(OSError):  # then the notebook has the engine's last words
            write_reserved(self._directory / job / VERDICT, why)
        self._send({"event": "ended", "job": job, "code": 3})

    def _kill(self, job: str) -> None:
        for pid, running in self._jobs.items():
            if running.job == job:
                processes.send(pid, signal.SIGKILL)

    def _forget(self, job: str) -> None:
        self._forgotten.add(job)
        if not any(running.job == job for running in self._jobs.values()):
            self._remove_forgotten(job)

    def _remove_forgotten(self, job: str) -> None:
        if job in self._forgotten:
            self._forgotten.remove(job)
            shutil.rmtree(self._directory / job, ignore_errors=True)

    def _ended(self, pid: int) -> None:
        running = self._jobs.pop(pid)
        self._had += 1
        _, status = os.waitpid(pid, 0)
        self._end_strays()
        self._gpus.give_back(running.gpus)
        self._send({"event": "ended", "job": running.job, "code": os.waitstatus_to_exitcode(status)})
        self._remove_forgotten(running.job)
        import_for_backward()  # where one job was, there will be more, perhaps without a pause between them

    def _end_strays(self) -> None:
        """Whatever became a child of the engine without being an agent was left by a job that is over."""
        for _ in range(1000):
            strays = [pid for pid in processes.children() if pid not in self._jobs]
            if not strays:
                return
            for pid in strays:
                processes.send(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the notebook is gone: the next turn notices
            self._control.send(json.dumps(message).encode())

    def _end_jobs(self) -> None:
        for pid in self._jobs:
            processes.send(pid, signal.SIGKILL)
        processes.end_children()
        processes.sweep(str(self._directory))  # what the notebook itself started in the same name


def _woken_by_children() -> int:
    """A descriptor that can be read from when a child has ended."""
    ears, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written
    return ears


def _told_of_end(pid: int) -> int | None:
    """A descriptor that can be read from when a process has ended; None where Linux is older than 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def gpus_taken(by: str) -> Diagnosis:
    """Why a job was not begun. by: what `GpuLocks.take` says."""
    hint = "wait for it, choose other GPUs with CUDA_VISIBLE_DEVICES, or use backend='gloo' without GPUs"
    return Diagnosis("infrastructure", by, hint=hint)


def main() -> None:
    """`engine FD DIRECTORY OWNER_PID`, in the order of `client.EngineProcess`."""
    descriptor, directory, owner = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    code = 1
    try:
        Engine(control, directory, owner).serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def warm_up() -> None:
    """Import what every rank needs, so that a fork has it; leave no thread behind.

    The objects are put out of the collector's reach, so that ranks do not write to the pages they share. The
    garbage among them stays until `import_the_rest`: to look for it takes a tenth of torch's own import.
    """
    gc.disable()
    import torch

    torch.set_num_threads(1)
    for name in _FOR_EVERY_JOB:
        importlib.import_module(name)
    for name in (*inherited(os.environ), *_FOR_THE_ENGINE):
        os.environ.pop(name, None)
    gc.freeze()


def import_for_ranks(names: Iterable[str]) -> None:
    """Import once what each rank would. What cannot be imported is for the ranks to stumble over."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if missing:
        _share_all()


def import_for_backward() -> None:
    """Import what the first `backward(gradient)` of a process does, 480 modules, on each rank of each job."""
    from labkit.torch_private import IMPORTED_BY_BACKWARD  # not above: it imports torch, once it is wanted

    import_for_ranks(IMPORTED_BY_BACKWARD)


def import_the_rest() -> None:
    """Import what many ranks need, but not the first launch, which waits for the engine to start."""
    from labkit.torch_private import IMPORTED_BY_OPTIMIZERS  # not above, for the same reason

    import_for_backward()
    importlib.import_module(IMPORTED_BY_OPTIMIZERS)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.collect()
    _share_all()


def _share_all() -> None:
    """Have ranks share what there is by now: neither the collector nor an allocation writes to its pages."""
    gc.freeze()
    fill_gaps()


if __name__ == "__main__":
    main()
