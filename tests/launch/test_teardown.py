"""Whatever ends a notebook, an engine or a job, nothing stays behind: told by counting."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import rank_functions as on_ranks
from launch_helpers import gone, leftovers
from waiting import soon, wait_for_output

import labkit
from labkit import processes
from labkit.launch import client
from labkit.launch.handover import directory

pytestmark = [pytest.mark.days(), pytest.mark.timeout(100)]

Notebook = Callable[..., tuple[subprocess.Popen[str], Path]]

# A process that is a notebook as far as the launcher is concerned: it starts a job that does not end, and
# waits.
NOTEBOOK = """
import os, sys, time
sys.path.insert(0, {tests!r})
import labkit, rank_functions
from labkit.launch import client
session = labkit.session(ranks=2)
job = labkit.launch({function}, ranks=2, wait=False)
session.run("print('ready')")
while not all("ready" in text for text in job.output):
    job.poll(0.01)
print(client.engine().directory, flush=True)
{then}
time.sleep(1000)
"""

A_CHILD_THAT_STAYS = "print(os.fork() or (time.sleep(100), os._exit(0)), flush=True)"  # longer than a test


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    started: list[subprocess.Popen[str]] = []

    def start(
        then: str = "", function: str = "rank_functions.sleeps", **environment: str
    ) -> tuple[subprocess.Popen[str], Path]:
        code = NOTEBOOK.format(tests=str(Path(__file__).parent), then=then, function=function)
        command, inherits = [sys.executable, "-c", code], {**os.environ, **environment}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=inherits)
        started.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_notebook_that_is_killed(notebook: Notebook, number: int) -> None:
    process, engine_directory = notebook()
    assert (
        len(processes.marked(str(engine_directory))) == 1 + 2 * 3
    )  # engine, two jobs with an agent and two ranks
    process.send_signal(number)
    process.wait(5)
    assert gone(engine_directory)


def test_a_notebook_that_exits(notebook: Notebook) -> None:
    process, engine_directory = notebook("sys.exit()")
    process.wait(10)
    assert gone(engine_directory, within=0.5)  # it waits for the engine


def test_notebook_and_engine_killed_together(
    notebook: Notebook,
) -> None:
    """Nobody is left to clean up: processes end by themselves, the directory goes at the next start."""
    process, engine_directory = notebook()
    parents = {pid: _parent(pid) for pid in processes.marked(str(engine_directory))}
    engine = next(pid for pid, parent in parents.items() if parent == process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    process.wait(5)
    directory.remove_stale()
    assert gone(engine_directory)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def child_that_stays(process: subprocess.Popen[str]) -> Iterator[None]:
    """The notebook has forked, and what it forked is there all the time."""
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield
        assert processes.is_alive(child)
    finally:
        processes.send(child, signal.SIGKILL)


def test_a_forked_copy_of_the_notebook_does_not_keep_the_engine(
    notebook: Notebook,
) -> None:
    """A child that inherited the engine's socket lives on; the engine leaves all the same."""
    process, engine_directory = notebook(A_CHILD_THAT_STAYS)
    with child_that_stays(process):
        process.kill()
        process.wait(5)
        assert gone(engine_directory)


def test_an_engine_where_linux_cannot_watch_a_process(notebook: Notebook, tmp_path: Path) -> None:
    """Before Linux 5.3 there is no pidfd: the engine looks whether its notebook is there, now and then."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef refuse(*_):\n    raise OSError(38, 'not implemented')\nos.pidfd_open = refuse\n"
    )
    process, engine_directory = notebook(A_CHILD_THAT_STAYS, PYTHONPATH=str(tmp_path))
    assert processes.marked(str(engine_directory))
    with child_that_stays(process):
        process.kill()
        process.wait(5)
        assert gone(engine_directory, within=6)


def test_a_stale_directory_is_removed_and_a_live_one_is_not() -> None:
    stale = directory.create()
    owner = json.loads((stale / "owner.json").read_text())
    (stale / "owner.json").write_text(json.dumps(owner | {"started": -5}))
    alive = directory.create()
    directory.remove_stale()
    assert (stale.exists(), alive.exists()) == (False, True)
    (alive / "owner.json").write_text("")  # as another process finds it while it is being written
    directory.remove_stale()
    assert alive.exists()
    directory.remove(alive)


@pytest.mark.parametrize("part", range(3))
def test_a_directory_from_elsewhere_is_let_be(part: int) -> None:
    """On a TMPDIR that hosts or containers share, where its owner's process id means somebody else."""
    there = directory.create()
    owner = json.loads((there / "owner.json").read_text())
    owner["where"][part] += "'s neighbour"  # the host, its boot, the namespace of process ids
    (there / "owner.json").write_text(json.dumps(owner | {"started": -5}))
    directory.remove_stale()
    assert there.exists()
    forgotten = time.time() - 31 * 86400
    os.utime(there, (forgotten, forgotten))
    directory.remove_stale()
    assert not there.exists()


def test_an_idle_engine_costs_nothing() -> None:
    labkit.launch(on_ranks.hello, ranks=1)
    stat = Path(f"/proc/{client.engine().pid}/stat")
    until = time.monotonic() + 40
    before: list[str] = []
    while (ticks := stat.read_text().rpartition(")")[2].split()[11:13]) != before:
        assert time.monotonic() < until  # it has imports to make while nobody asks for anything
        before = ticks
        time.sleep(2.0)  # and then: not one hundredth of a second of CPU
    assert len(list(Path(f"/proc/{client.engine().pid}/task").iterdir())) == 1  # and one thread


FAULTS: list[Callable[[], None]] = [
    on_ranks.raises_on_one,
    on_ranks.different_collectives,
    on_ranks.different_sizes,
    on_ranks.crossing_sends,
    on_ranks.sleeps,
    on_ranks.spins_in_c,
    on_ranks.aborts_on_one,
    on_ranks.killed_on_one,
    on_ranks.ignores_sigterm,
]


def test_twenty_rounds_of_random_faults_leave_nothing() -> None:
    choose = random.Random(20240229)
    labkit.launch(on_ranks.hello, ranks=2)
    before = _descriptors()
    for number in range(20):
        _one_fault(choose)
        soon(lambda: not leftovers(), within=1)
        assert leftovers() == [], f"round {number}"
        assert _descriptors() <= before, f"round {number}"
    assert labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2).results[0].tolist() == [1.0] * 4


def _one_fault(choose: random.Random) -> None:
    fault = choose.choice(FAULTS)
    kind = choose.choice(["launch", "launch", "session", "cancel", "kill the engine", "kill the agent"])
    if kind == "launch":
        with pytest.raises(labkit.LaunchError):
            labkit.launch(fault, ranks=2, timeout=0.6)
    elif kind == "session":
        with labkit.session(ranks=2) as session, pytest.raises(labkit.LaunchError):
            session.call(fault, timeout=0.6)
    else:
        job = labkit.launch(fault, ranks=2, timeout=5, wait=False)
        job.poll(choose.random() * 0.3)
        _end(job, kind)


def _end(job: labkit.Job, kind: str) -> None:
    engine = client.engine()
    if kind == "cancel":
        job.cancel()
    elif kind == "kill the engine":
        os.kill(engine.pid, signal.SIGKILL)
    else:
        for pid in processes.marked(str(engine.directory)):
            if _parent(pid) == engine.pid:
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(labkit.LaunchError):
        job.wait()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


SMALL_DISK = """
import sys
sys.path.insert(0, {tests!r})
import labkit, rank_functions as on_ranks
print(labkit.launch(on_ranks.hello, ranks=2).results)
big = 64 << 20
for function, *args in ((on_ranks.returns_bytes, big), (on_ranks.prints, big), (on_ranks.fills_the_disk,)):
    try:
        labkit.launch(function, *args, ranks=2)
    except labkit.LaunchError as error:
        print(error.verdict, error.diagnosis.summary)
with labkit.session(ranks=2) as session:
    session.run("import rank_functions as on_ranks")
    try:
        session.run("on_ranks.fills_the_disk()")
    except labkit.LaunchError as error:
        print(error.verdict, error.diagnosis.summary)
    print(session.call(on_ranks.hello))
try:
    with open("/mnt/fill", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
try:
    labkit.launch(on_ranks.hello, ranks=2)
except labkit.LaunchError as error:
    print(error.verdict, error)
"""


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap makes the small disk")
def test_a_full_disk_is_said_to_be_full() -> None:
    small = ["bwrap", "--dev-bind", "/", "/", "--size", str(16 << 20), "--tmpfs", "/mnt"]
    code = SMALL_DISK.format(tests=str(Path(__file__).parent))
    run = [*small, "--setenv", "TMPDIR", "/mnt", sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[rank")]
    full = "infrastructure rank 0 failed: OSError: [Errno 28] No space left on device"
    assert [line.replace("rank 1", "rank 0") for line in lines[:5]] == ["[0, 1]", *[full] * 4]
    assert lines[5] == "[0, 1]", "a session goes on when there is room again"
    assert lines[6].startswith("infrastructure the job's directory")
    assert "No space left" in lines[6]


NO_SHARED_MEMORY = """
import labkit
with labkit.session(ranks=2) as session:
    session.run("rank")
    try:
        with open("/dev/shm/fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
    try:
        labkit.launch(print, ranks=2)
    except labkit.LaunchError as error:
        print(error.verdict, error)
"""


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap makes the small disk")
def test_shared_memory_without_room_is_said_to_have_none() -> None:
    small = ["bwrap", "--dev-bind", "/", "/", "--size", str(64 << 10), "--tmpfs", "/dev/shm"]
    run = [*small, sys.executable, "-c", NO_SHARED_MEMORY]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == (
        "infrastructure the job could not be started: /dev/shm has no room (0 KiB free)"
    ), done.stderr
    assert "--shm-size" in done.stdout


LONG_ERROR = """
import sys
sys.path.insert(0, {tests!r})
import labkit, rank_functions as on_ranks
try:
    labkit.launch(on_ranks.fails_at_length_on_a_full_disk, ranks=2)
except labkit.LaunchError as error:
    told = error.ranks[error.rank]
    print(error.verdict, error.diagnosis.summary[:30], len(told.related), told.traceback[-1].source)
"""


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap makes the small disk")
def test_a_long_error_is_cut_to_the_room_that_there_is() -> None:
    small = ["bwrap", "--dev-bind", "/", "/", "--size", str(16 << 20), "--tmpfs", "/mnt"]
    code = LONG_ERROR.format(tests=str(Path(__file__).parent))
    run = [*small, "--setenv", "TMPDIR", "/mnt", sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = done.stdout.replace("rank 1", "rank 0")
    assert told == "error rank 0 failed: ValueError: 888 8 raise error\n", done.stderr


def test_a_job_whose_agent_cannot_say_why_it_ended_was_cancelled_all_the_same() -> None:
    def wait() -> None:
        print(os.getppid(), "ready", flush=True)
        time.sleep(60)

    job = labkit.launch(wait, ranks=1, wait=False)
    wait_for_output(job)
    os.kill(int(job.output[0].split()[0]), signal.SIGSTOP)
    job.cancel()
    assert job.error is not None
    assert job.error.verdict == "cancelled"
    assert leftovers() == []


def test_a_session_whose_agent_was_killed_says_to_run_the_cell_again() -> None:
    with labkit.session(ranks=1) as session:
        parent = int(session.run("import os; os.getppid()").values[0])
        os.kill(parent, signal.SIGKILL)
        while processes.is_alive(parent):
            time.sleep(0.01)
        with pytest.raises(labkit.LaunchError, match="run the cell again; your code is not to blame"):
            session.run("rank")
        assert session.run("rank").values == {0: "0"}
