"""A cell that is interrupted, ranks that end: what was there stays, the next cell has its own answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from launch_helpers import jobs_of
from waiting import soon

import labkit
from labkit.launch import client, staying_ranks
from labkit.launch.cell import CellResult
from labkit.launch.failure.errors import InfrastructureError, LaunchError
from labkit.launch.handover.session_wire import Listener
from labkit.launch.here import Here
from labkit.launch.job import Job
from labkit.launch.session import Session

DIST = "import torch.distributed as dist"

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("continues", [True, False])
def test_an_interrupt_while_values_are_sent_loses_none(session: Session, continues: bool) -> None:
    notebook: dict[str, object] = {"data": torch.ones(2 << 20)}
    pid = int(session.run("import os, time\nos.getpid()").values[1])
    os.kill(pid, signal.SIGSTOP)
    _interrupt_after(0.4)
    if continues:
        threading.Timer(0.8, os.kill, (pid, signal.SIGCONT)).start()
    with pytest.raises(labkit.LaunchError) as caught:
        session.run("data\ntime.sleep(100)", names=notebook)
    assert caught.value.verdict == "interrupted"
    assert ("replaced" in str(caught.value)) is not continues
    assert session.run("data.sum().item()", names=notebook).values == {0: "2097152.0", 1: "2097152.0"}


@pytest.mark.parametrize(
    ("cell", "verdict", "words"),
    [
        (
            f"{DIST}\nif rank: raise ValueError('no')\ndist.barrier()",
            "error",
            "rank 1 failed: ValueError: no",
        ),
        (f"{DIST}\nif rank: dist.barrier()", "deadlock", "rank 1 waits in barrier"),
        ("while rank: pass", "timeout", "within 1.5 s: rank 1 still running"),
        ("import os\nif rank: os._exit(4)", "error", "exit code 4"),
    ],
)
def test_ranks_that_cannot_go_on_are_replaced_within_a_second(
    session: Session, cell: str, verdict: str, words: str
) -> None:
    session.run("x = 7")
    with pytest.raises(labkit.LaunchError) as caught:
        session.run(cell, timeout=1.5)
    replaced = time.monotonic()
    assert caught.value.verdict == verdict
    assert words in str(caught.value)
    assert "The session was replaced" in str(caught.value)
    assert session.run("'x' in globals()").values == {0: "False", 1: "False"}
    assert time.monotonic() - replaced < 2  # aims at 0.2; the machine may be busy


def test_an_interrupt_stops_the_cell_and_keeps_the_variables(session: Session) -> None:
    session.run("x = 7")
    _interrupt_after(0.5)
    with pytest.raises(labkit.LaunchError) as caught:
        session.run("while True: pass")
    assert caught.value.verdict == "interrupted"
    assert session.run("x").values[0] == "7"


def test_a_watch_that_fails_leaves_the_next_cell_its_own_answers(session: Session) -> None:
    def fails(_: CellResult) -> None:
        raise OSError("no room to draw")

    with pytest.raises(OSError, match="no room to draw"):
        session.run("import time\nx = 3\ntime.sleep(0.5)\n'first'", watch=fails)
    assert session.run("x").values == {0: "3", 1: "3"}


def test_an_interrupt_at_any_moment_leaves_the_next_cell_its_own_answers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here while it is looked whether the ranks still run."""
    looks = Job.poll

    def interrupted(job: Job, timeout: float = 0.0) -> bool:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return looks(job, timeout)

    def look(_: CellResult) -> None:
        if not moments:
            moments.append("running")
            monkeypatch.setattr(Job, "poll", interrupted)

    moments: list[str] = []
    with pytest.raises((labkit.LaunchError, KeyboardInterrupt)):
        session.run("import time\nfor _ in range(100): time.sleep(0.1)\n'first'", watch=look)
    assert session.run("'second'").values == {0: "'second'", 1: "'second'"}


def test_an_interrupt_of_a_stuck_cell_replaces_the_ranks(session: Session) -> None:
    session.run("import torch.distributed as dist, time")
    _interrupt_after(0.5)
    began = time.monotonic()
    with pytest.raises(labkit.LaunchError):
        session.run("sum(range(10**15)) if rank else dist.barrier()")
    assert time.monotonic() - began < 5
    assert session.run("1").values[0] == "1"


def test_an_interrupt_that_finds_the_cell_done_is_told_all_the_same(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loop of short cells would go on, as nearly each has ended when the interrupt comes."""
    hear, heard = Session._heard, list[int]()

    def interrupted(self: Session, rank: int, answer: Mapping[str, Any]) -> None:
        hear(self, rank, answer)
        heard.append(rank)
        if len(heard) == session.ranks:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Session, "_heard", interrupted)
    with pytest.raises(labkit.LaunchError, match="interrupted when the ranks were done") as caught:
        session.run("print('printed')\nx = rank")
    assert (caught.value.verdict, caught.value.output) == ("interrupted", ["printed\n"] * 2)
    assert session.run("x").values == {0: "0", 1: "1"}


def test_a_cell_that_deals_with_the_interrupt_itself_has_its_value(session: Session) -> None:
    session.run("import time")
    _interrupt_after(0.6)
    stops = "try:\n    time.sleep(20)\nexcept KeyboardInterrupt:\n    pass\n'saved'"
    assert session.run(stops).values == {0: "'saved'", 1: "'saved'"}


def _interrupt_after(seconds: float) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT)).start()


def test_ranks_that_died_between_cells_are_told_of(session: Session) -> None:
    session.run("x = 7")
    pid = int(session.run("import os\nos.getpid()").values[1])
    os.kill(pid, signal.SIGKILL)
    soon(lambda: not session.alive, within=20)
    with pytest.raises(labkit.LaunchError, match="The session was replaced") as caught:
        session.run("x")
    assert (caught.value.verdict, caught.value.rank) == ("killed", 1)
    assert session.run("'x' in globals()").values == {0: "False", 1: "False"}


def test_ranks_that_do_not_report_in_time_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has cancelled them."""
    monkeypatch.setattr(Here, "patience", 0.0)
    with labkit.session(ranks=2) as begun:
        with pytest.raises(InfrastructureError, match="do not answer: 0 of 2 had reported"):
            begun.run("1")
        monkeypatch.undo()
        assert begun.run("1 + 1").values == {0: "2", 1: "2"}


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_while_ranks_report_loses_none(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here when one of them has been let in, and has not said yet which it is."""
    accepts, came = Listener.accept, list[Connection]()

    def interrupted(listener: Listener, seconds: float) -> Connection | None:
        if (connection := accepts(listener, seconds)) is not None:
            came.append(connection)
            if len(came) == rank + 1:
                os.kill(os.getpid(), signal.SIGINT)
        return connection

    monkeypatch.setattr(Listener, "accept", interrupted)
    with labkit.session(ranks=2) as begun:
        with pytest.raises(KeyboardInterrupt):
            begun.run("1")
        came.clear()
        monkeypatch.undo()
        began = time.monotonic()
        assert begun.run("1 + 1").values == {0: "2", 1: "2"}
        assert time.monotonic() - began < 20, "nobody waits for one that has gone"


def test_a_rank_that_is_behind_one_that_failed_is_asked_to_stop(session: Session) -> None:
    session.run("x = 7")
    with pytest.raises(labkit.LaunchError) as caught:
        session.run("import time\nif rank:\n  for _ in range(3000): time.sleep(0.01)\nelse: 1 / 0")
    assert (caught.value.verdict, caught.value.rank) == ("error", 0)
    assert "replaced" not in str(caught.value)
    assert session.run("x").values == {0: "7", 1: "7"}


def test_stopping_ends_a_cell_of_another_thread_that_hears_no_interrupt(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staying_ranks, "_INTERRUPTED", 0.0)
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    cell = session.run_async(deaf + "print('deaf', flush=True)\ntime.sleep(99)")
    while "deaf" not in session._running_job().new_output([0, 0])[1]:
        time.sleep(0.05)
    session.stop()
    assert not session.alive
    with pytest.raises(LaunchError) as ended:
        cell.result(5)
    assert ended.value.verdict in ("cancelled", "interrupted")


@pytest.mark.parametrize("times", [1, 2])
def test_an_engine_that_ends_before_it_takes_the_ranks(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there, ended = client.engine, list[int]()

    def ends_at_once() -> client.EngineProcess:
        engine = there()
        if len(ended) < times:
            ended.append(engine.pid)
            os.kill(engine.pid, signal.SIGKILL)
            os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        return engine

    monkeypatch.setattr(client, "engine", ends_at_once)
    if times == 2:
        with pytest.raises(InfrastructureError, match="engine process ended twice before it took a job"):
            labkit.session(ranks=2)
        return
    with labkit.session(ranks=2) as begun:
        assert begun.run("1 + 1").values == {0: "2", 1: "2"}
    assert len(ended) == 1


def test_two_interrupts_leave_nothing() -> None:
    """Whether the second comes while the job is being ended or just after."""
    directory = client.engine().directory
    ended: list[str] = []
    for seconds in (0.5, 0.55):
        _interrupt_after(seconds)
    try:
        try:
            labkit.launch(time.sleep, 60, ranks=2)
        except labkit.LaunchError as error:
            ended.append(error.verdict)
        time.sleep(2)
    except KeyboardInterrupt:
        ended.append("interrupted")
    assert set(ended) == {"interrupted"}
    assert soon(lambda: not jobs_of(directory), within=5)
