"""Functions that ranks run in the launcher's tests: the well-behaved, and one for each way to fail."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from labkit.launch.handover.request import state_path
from labkit.record.state import PHASES, WAITING, StatePage


def sum_of_ranks(start: float, group: dist.ProcessGroup) -> torch.Tensor:
    x = torch.full((4,), start + dist.get_rank())
    dist.all_reduce(x, group=group)
    return x


def hello() -> int:
    print("hello from", dist.get_rank())
    print("to stderr", file=sys.stderr)
    os.system("echo from a shell")
    return dist.get_rank()


# -- one rank fails while the others wait


def when_the_others_wait() -> None:
    """Until the state pages of the other ranks say that they do: they lie beside this rank's log."""
    directory = Path(os.readlink("/proc/self/fd/1")).parent
    others = set(range(dist.get_world_size())) - {dist.get_rank()}
    pages = [StatePage(state_path(directory, rank)) for rank in others]
    while any(page.read().phase != PHASES[WAITING] for page in pages):
        time.sleep(0.01)


def raises_on_one() -> None:
    if dist.get_rank() == 1:
        when_the_others_wait()
        raise ValueError("the shard is empty")
    dist.all_reduce(torch.ones(3))


def exits_on_one(code: Any) -> None:
    if dist.get_rank() == 1:
        sys.exit(code)
    dist.barrier()


def os_exits_on_one(code: int) -> None:
    if dist.get_rank() == 1:
        os._exit(code)
    dist.barrier()


def aborts_on_one() -> None:
    if dist.get_rank() == 1:
        when_the_others_wait()
        os.abort()
    dist.barrier()


def segfaults_on_one() -> None:
    if dist.get_rank() == 1:
        when_the_others_wait()
        ctypes.string_at(0)
    dist.barrier()


def killed_on_one() -> None:
    if dist.get_rank() == 1:
        when_the_others_wait()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def asks_for_too_much_memory() -> None:
    if dist.get_rank() == 1:
        torch.empty(1 << 46)
    dist.barrier()


# -- ranks that do not fit each other


def allocates_in_group(group: str) -> None:
    """Rank 1 enters the control group and takes more memory than the group may have."""
    if dist.get_rank() == 1:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        kept = [torch.ones(2**22) for _ in range(100)]
        del kept
    dist.barrier()


def different_collectives() -> None:
    x = torch.ones(3)
    if dist.get_rank() == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)


def different_sizes() -> None:
    dist.all_reduce(torch.ones(3 + 100 * dist.get_rank()))


def different_dtypes() -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if dist.get_rank() else torch.float32))


def different_counts() -> None:
    for _ in range(2 + dist.get_rank()):
        dist.all_reduce(torch.ones(3))


def send_without_recv() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)


def recv_from_finished() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1)


def crossing_sends() -> None:
    if dist.get_rank() < 2:
        dist.send(torch.ones(3), 1 - dist.get_rank())


# -- ranks that do not end


def sleeps() -> None:
    print("ready")
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


def spins_in_python() -> None:
    while dist.get_rank() == 1:
        pass
    dist.barrier()


def spins_in_c() -> None:
    if dist.get_rank() == 1:
        sum(range(10**15))
    dist.barrier()


def ignores_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def late_but_fine(seconds: float) -> int:
    """All other ranks wait for one that works: no deadlock."""
    if dist.get_rank() == 0:
        time.sleep(seconds)
    dist.barrier()
    return 1


# -- what they leave behind


def leaves_children() -> int:
    """A child that has its own session and environment, and a thread that never ends."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}, stdin=subprocess.DEVNULL)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return child.pid


def returns_a_lock() -> Any:
    return {"model": [1, threading.Lock()]} if dist.get_rank() == 1 else 1


def returns_bytes(count: int) -> bytes:
    return bytes(count)


def prints(count: int) -> None:
    for _ in range(count // 64):
        print("x" * 63)


def _all_the_room() -> IO[bytes]:
    """A file that takes all the room on the temporary directory's disk."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    with contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return file


def fills_the_disk() -> None:
    """Take all the room on the temporary directory's disk, and print; kept while the error is."""
    file = _all_the_room()  # noqa: F841
    for _ in range(1000):
        print("no room for this")


def fails_at_length_on_a_full_disk() -> None:
    """With nine errors, each as long as is shown of one."""
    file = _all_the_room()  # noqa: F841  kept while the error is
    error = ValueError("0" * 8000)
    for number in range(1, 9):
        cause, error = error, ValueError(str(number) * 8000)
        error.__cause__ = cause
    raise error


def prints_for(seconds: float, per_second: int) -> int:
    """Print at a rate; how much was printed."""
    end, printed = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        print("x" * 999)
        printed += 1000
        time.sleep(1000 / per_second)
    return printed


# -- where other users of the machine look on


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.01)


def meets_when_told(folder: str) -> float:
    """The sum of ones, once the folder has `go`."""
    print("ready", flush=True)
    _wait_for(Path(folder, "go"))
    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)


def makes_groups(folder: str) -> None:
    """Groups of two, one after the other; rank 1 comes to each only when it is told to."""
    for turn in range(40):
        if dist.get_rank() == 1:
            _wait_for(Path(folder, f"go{turn}"))
        group = dist.new_group([0, 1])
        dist.broadcast_object_list([None], group=group)
