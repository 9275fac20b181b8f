"""Sessions: variables that persist, names from the notebook, faults that replace the ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.launch import client
from labkit.launch.session import Session

DIST = "import torch.distributed as dist"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def session() -> Iterator[Session]:
    with labkit.session(ranks=2) as running:
        yield running


def test_variables_persist_and_values_are_shown(session: Session) -> None:
    session.run("import torch, torch.distributed as dist\nx = torch.ones(2) * rank")
    result = session.run("dist.all_reduce(x)\nprint('summed on', rank)\nx")
    assert result.values == {0: "tensor([1., 1.])", 1: "tensor([1., 1.])"}
    assert result.output == {0: "summed on 0\n", 1: "summed on 1\n"}
    assert session.run("x;").values == {0: "", 1: ""}
    assert session.run("world_size").values == {0: "2", 1: "2"}


def test_a_cell_on_some_ranks(session: Session) -> None:
    session.run("here = 0")
    assert session.run("here = 1", ranks=[1]).ranks == (1,)
    assert session.run("here").values == {0: "0", 1: "1"}
    with pytest.raises(ValueError, match=r"no rank 2: .* ranks 0 to 1"):
        session.run("here", ranks=[2])


def test_a_function_call_returns_results(session: Session) -> None:
    def total(start: int) -> float:
        x = torch.tensor(float(start + dist.get_rank()))
        dist.all_reduce(x)
        return float(x)

    assert session.call(total, 10) == [21.0, 21.0]


def test_records_of_the_last_cell(session: Session) -> None:
    session.run("import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(3))")
    session.run("dist.broadcast(torch.ones(5), 0)")
    calls, _ = session.records()
    assert [(c.op, c.num_bytes) for c in calls] == [("broadcast", 20)] * 2
    assert all(c.start >= 0 for c in calls)


def in_notebook(source: str, names: dict[str, object]) -> None:
    """Define things as a notebook cell does."""
    exec(compile(source, "In[1]", "exec"), names)


def test_names_of_the_notebook_arrive_when_they_change(session: Session) -> None:
    notebook: dict[str, object] = {"__name__": "__main__"}
    in_notebook(
        "scale = 3\ndef scaled(x): return x * scale\nclass Net:\n  def f(self): return scaled(rank)", notebook
    )
    assert session.run("scaled(2), Net().f()", names=notebook).values == {0: "(6, 0)", 1: "(6, 3)"}
    in_notebook("scale = 5", notebook)
    assert session.run("scaled(2)", names=notebook).values == {0: "10", 1: "10"}
    in_notebook("def scaled(x): return -x", notebook)
    assert session.run("scaled(2), Net().f()", names=notebook).values == {0: "(-2, 0)", 1: "(-2, -1)"}


def test_what_a_rank_assigned_is_not_overwritten(session: Session) -> None:
    notebook: dict[str, object] = {"__name__": "__main__"}
    in_notebook("weight = 'notebook'\ndef show(): return weight", notebook)
    session.run("weight = 'rank'")
    assert session.run("show(), weight", names=notebook).values[0] == "('rank', 'rank')"


def test_modules_and_unpicklable_names(session: Session) -> None:
    notebook: dict[str, object] = {"__name__": "__main__"}
    in_notebook("import math\nimport threading\nlock = threading.Lock()", notebook)
    assert session.run("math.floor(2.5)", names=notebook).values[1] == "2"
    with pytest.raises(labkit.LaunchError, match="name 'lock' is not defined"):
        session.run("lock", names=notebook)
    assert session.run("1").values[0] == "1"


def test_an_error_on_every_rank_keeps_the_session(session: Session) -> None:
    session.run("x = 7")
    with pytest.raises(labkit.LaunchError) as caught:
        session.run("y = 1\ny / 0", file="In[3]")
    assert (caught.value.verdict, caught.value.rank) == ("error", 0)
    assert "In[3], line 2" in str(caught.value)
    assert "y / 0" in str(caught.value)
    assert session.run("x").values[0] == "7"


def test_a_syntax_error_never_reaches_the_ranks(session: Session) -> None:
    with pytest.raises(SyntaxError):
        session.run("for", names={})
    assert session.run("1").values[0] == "1"


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


def test_an_interrupt_of_a_stuck_cell_replaces_the_ranks(session: Session) -> None:
    session.run("import torch.distributed as dist, time")
    _interrupt_after(0.5)
    began = time.monotonic()
    with pytest.raises(labkit.LaunchError):
        session.run("sum(range(10**15)) if rank else dist.barrier()")
    assert time.monotonic() - began < 5
    assert session.run("1").values[0] == "1"


def _interrupt_after(seconds: float) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT)).start()


def test_status_stop_and_restart(session: Session) -> None:
    session.run("x = 7")
    assert all("idle" in line for line in session.status())
    session.restart()
    assert session.run("'x' in globals()").values[0] == "False"
    session.stop()
    assert not session.alive
    assert session.status() == ["the session is not running"]
    assert session.run("1 + 1").values[0] == "2"  # a stopped session starts again


def test_output_of_a_running_cell_is_seen(session: Session) -> None:
    seen: list[str] = []
    session.run(
        "import time\nprint('early')\ntime.sleep(0.5)\nprint('late')",
        watch=lambda r: seen.append(r.output[0]),
    )
    assert "early\n" in seen
    assert "early\nlate\n" not in seen[0]


def test_a_session_and_a_launch_side_by_side(session: Session) -> None:
    session.run("x = 1")
    assert labkit.launch(lambda: dist.get_rank(), ranks=2).results == [0, 1]
    assert session.run("x").values[0] == "1"


def test_ranks_that_died_between_cells_are_told_of(session: Session) -> None:
    session.run("x = 7")
    pid = int(session.run("import os\nos.getpid()").values[1])
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while session.alive and time.monotonic() < until:
        time.sleep(0.02)
    with pytest.raises(labkit.LaunchError, match="The session was replaced") as caught:
        session.run("x")
    assert (caught.value.verdict, caught.value.rank) == ("killed", 1)
    assert session.run("'x' in globals()").values == {0: "False", 1: "False"}


def test_a_rank_that_is_behind_one_that_failed_is_asked_to_stop(session: Session) -> None:
    session.run("x = 7")
    with pytest.raises(labkit.LaunchError) as caught:
        session.run("import time\nif rank:\n  for _ in range(3000): time.sleep(0.01)\nelse: 1 / 0")
    assert (caught.value.verdict, caught.value.rank) == ("error", 0)
    assert "replaced" not in str(caught.value)
    assert session.run("x").values == {0: "7", 1: "7"}


def test_a_second_thread_is_told_that_the_session_is_busy(session: Session) -> None:
    seen: list[str] = []

    def while_it_runs(result: object) -> None:
        with pytest.raises(RuntimeError, match="another thread"):
            session.run("1")
        seen.append("told")

    session.run("import time\ntime.sleep(0.5)", watch=while_it_runs)
    assert seen
    assert session.run("1 + 1").values[0] == "2"


def test_the_end_of_a_long_output_belongs_to_its_cell(session: Session) -> None:
    result = session.run("print('a' * (9 << 20))\nprint('the end')")
    assert result.output[0].endswith("the end\n")
    assert session.run("print('next')").output[0] == "next\n"


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
    deadline = time.monotonic() + 5
    while list(directory.glob("job*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(directory.glob("job*")) == []
