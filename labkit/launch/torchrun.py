"""`%%torchrun`: a cell as a script under the stock torchrun command, which is shown for use in a shell."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

from labkit import processes
from labkit.launch import client
from labkit.launch.failure.errors import Diagnosis, JobCancelled, JobTimeout, RankError
from labkit.launch.handover.environment import inherited
from labkit.launch.handover.session_wire import interrupts_later

_GRACE = 1.0
_MARK = "LABKIT_TORCHRUN"  # in the environment of every process of one command: its directory of logs


def command(script: Path, ranks: int) -> list[str]:
    """The command that runs a script on `ranks` ranks of this machine, with this Python and a free port."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*run, str(script)]


def run_script(script: Path, ranks: int, timeout: float, write: Callable[[str], object]) -> None:
    """Run the command and hand on what it prints, until it ends. RankError or JobTimeout when it fails.

    An interrupt ends it. So does the end of the notebook: its processes carry the engine's mark. torchrun's
    own logs, of which it otherwise leaves an empty directory for each run, are removed.
    """
    with tempfile.TemporaryDirectory() as logs:
        _run(command(script, ranks), logs, timeout, write)


def _run(line: list[str], logs: str, timeout: float, write: Callable[[str], object]) -> None:
    hidden = inherited(os.environ)
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {processes.ENGINE_MARK: str(client.engine().directory), "PYTHONUNBUFFERED": "1"}
    environment |= {_MARK: logs, "PET_LOG_DIR": logs}  # the latter is what --log-dir would say
    environment.setdefault("OMP_NUM_THREADS", "1")
    write(f"$ {shlex.join(line)}\n")
    process = subprocess.Popen(
        line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        in_time = _copy(process, time.monotonic() + timeout, write)
    except KeyboardInterrupt:
        raise JobCancelled(Diagnosis("interrupted", "torchrun was interrupted and ended")) from None
    finally:
        with interrupts_later():  # who is impatient would leave what does not end at once
            _end(process, logs)
    if not in_time:
        raise JobTimeout(Diagnosis("timeout", f"torchrun did not finish within {timeout:g} s and was ended"))
    if process.returncode:
        summary = f"torchrun ended with exit code {process.returncode}; what the ranks printed is above"
        raise RankError(Diagnosis("error", summary))


def _copy(process: subprocess.Popen[bytes], deadline: float, write: Callable[[str], object]) -> bool:
    assert process.stdout is not None
    decoder = getincrementaldecoder("utf-8")("replace")  # a character may come in two pieces
    while time.monotonic() < deadline:
        if wait([process.stdout.fileno()], 0.1):  # select knows no number from 1024 on
            data = os.read(process.stdout.fileno(), 65536)
            write(decoder.decode(data, final=not data))
            if not data:
                return _ended(process, deadline)
        elif process.poll() is not None:
            return True  # what it leaves running has its output, and may keep it open for ever
    return False


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it is over in time: a program can close its output long before it ends."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes], logs: str) -> None:
    """End torchrun and its workers, which it starts in sessions of their own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        process.kill()
    process.wait()
    if process.returncode:
        processes.end(processes.marked(logs, _MARK), 0.0)
    assert process.stdout is not None
    process.stdout.close()
