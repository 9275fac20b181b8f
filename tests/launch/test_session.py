"""Sessions: variables that persist, names from the notebook, errors that keep the ranks."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.launch import client
from labkit.launch.failure.errors import RankError
from labkit.launch.session import Session
from labkit.launch.staying_ranks import NotNow

DIST = "import torch.distributed as dist"

pytestmark = pytest.mark.timeout(60)


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
    calls = session.record().collectives
    assert [(c.op, c.num_bytes) for c in calls] == [("broadcast", 20)] * 2
    assert all(c.start >= 0 for c in calls)
    session.run("1", ranks=[0])
    assert session.record().collectives == []  # nor has rank 1 any, which did not take part


def test_ranks_that_have_done_nothing_have_no_record(session: Session) -> None:
    """Neither new ones, nor those that took the place of others; none are started for it."""
    with pytest.raises(NotNow, match="no cell has run on these ranks"):
        session.record()
    with pytest.raises(RankError):
        session.run("import torch.distributed as dist\nrank / rank\ndist.barrier()")
    with pytest.raises(NotNow, match="no cell has run on these ranks"):
        session.record()
    assert session.debug(0, "p rank") == "0\n"
    session.stop()
    with pytest.raises(NotNow, match="no cell has run on these ranks"):
        session.record()
    assert not session.alive


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
    with pytest.raises(
        labkit.LaunchError, match=r"`lock`.* cannot be sent to the ranks: it is a _thread.lock"
    ):
        session.run("lock", names=notebook)
    in_notebook("class Box: pass\nbox = Box()\nbox.inner = {'a': [lock]}\ndef use(): return box", notebook)
    with pytest.raises(
        labkit.LaunchError, match=r"(?s)`box.inner\['a'\]\[0\]`.*Hint: make `box` in the cell"
    ):
        session.run("use()", names=notebook)
    session.run("box = 3")
    assert session.run("use()", names=notebook).values[0] == "3"
    assert session.run("1").values[0] == "1"


def test_a_value_too_large_for_a_cell_can_be_pushed(session: Session) -> None:
    notebook: dict[str, object] = {"data": torch.zeros(17 << 20)}
    with pytest.raises(
        labkit.LaunchError, match=r"(?s)`data`.* has 68 MiB: more than the 64 MiB.*--push data"
    ) as told:
        session.run("data", names=notebook)
    assert "replaced" not in str(told.value)
    assert session.run("data.numel()", names=notebook, push=["data"]).values[1] == str(17 << 20)
    assert not list(client.engine().directory.rglob("parcel*"))


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


def test_calls_that_do_not_fit_are_told_of_once_and_the_ranks_stay(session: Session) -> None:
    """Nobody was kept waiting, so only the comparison tells. What one cell sends another may receive."""
    session.run(f"import torch\n{DIST}\nx = torch.zeros(2)\nfour = dict(dtype=torch.int32)")
    session.run("if rank == 0: first = dist.isend(x + 1, 1)")
    session.run("if rank == 0: second = dist.isend(torch.zeros(3), 1)\nelse: dist.recv(x, 0)")
    session.run("if rank == 1: dist.recv(torch.zeros(3), 0)")
    with pytest.raises(labkit.LaunchError, match="did not agree in their collective call 1") as caught:
        session.run("dist.broadcast(torch.ones(2, **(four if rank else {})), 0)", file="In[7]")
    assert "float32 at In[7]:1" in str(caught.value)
    assert "int32 at In[7]:1" in str(caught.value)
    assert session.run("dist.barrier()\nx.tolist()").values == {0: "[0.0, 0.0]", 1: "[1.0, 1.0]"}


def test_what_cannot_be_a_name_is_not_pushed(session: Session) -> None:
    with pytest.raises(ValueError, match="'my x' is no name"):
        session.push({"my x": 1})
    session.run("d = {rank: 1}")
    with pytest.raises(TypeError, match=r"dict and dict .* `pull`"):
        session.gather("d")


def test_a_function_is_no_cell(session: Session) -> None:
    with pytest.raises(TypeError, match=r"source text, not builtin_function_or_method; .* labkit\.launch\("):
        session.run(print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raising", "told"),
    [
        ("raise ValueError('\\ud800 lone')", "ValueError: \\ud800 lone"),
        ("e = ValueError('odd')\ne.__notes__ = 3\nraise e", "ValueError: odd"),
    ],
)
def test_an_odd_error_is_told_as_any(session: Session, raising: str, told: str) -> None:
    """Half a character, which no notebook can be sent; notes that are none."""
    with pytest.raises(labkit.LaunchError) as caught:
        session.run(raising)
    str(caught.value).encode()
    assert told in str(caught.value)
    assert "replaced" not in str(caught.value)


def test_a_second_thread_is_told_that_the_session_is_busy(session: Session) -> None:
    seen: list[str] = []

    def while_it_runs(result: object) -> None:
        with pytest.raises(NotNow, match="another thread"):
            session.run("1")
        seen.append("told")

    session.run("import time\ntime.sleep(0.5)", watch=while_it_runs)
    assert seen
    assert session.run("1 + 1").values[0] == "2"


def test_the_end_of_a_long_output_belongs_to_its_cell(session: Session) -> None:
    result = session.run("print('a' * (9 << 20))\nprint('the end')")
    assert result.output[0].endswith("the end\n")
    assert session.run("print('next')").output[0] == "next\n"


def test_a_notebook_with_more_than_a_thousand_open_files() -> None:
    """`select` knows no descriptor from 1024 on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip(f"no more than {before[1]} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, before[0]), before[1]))
    try:
        with ExitStack() as files:
            for _ in range(1100):
                files.enter_context(open(os.devnull))
            with labkit.session(ranks=2) as begun:
                assert begun.run("1 + 1").values == {0: "2", 1: "2"}
            assert labkit.launch(os.getpid, ranks=1).results
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


FORKS = "import os\nchild = os.fork() == 0\n"


@pytest.mark.parametrize(("then", "told"), [("rank", ""), ("if child: 1 / 0\nrank", "ZeroDivisionError")])
def test_a_process_that_a_cell_forks_does_not_answer_for_its_rank(
    session: Session, then: str, told: str
) -> None:
    """It leaves at the cell's end, which says so; and each cell has its own answer."""
    result = session.run(FORKS + then)
    assert result.values == {0: "0", 1: "1"}
    assert all("which this code forked, came to its end" in text for text in result.output.values())
    assert all(told in text for text in result.output.values())
    assert [session.run(f"{number}").values[1] for number in range(3)] == ["0", "1", "2"]


def test_a_process_that_a_call_forks_does_not_answer_for_its_rank(session: Session) -> None:
    assert session.call(lambda: "parent" if os.fork() else "child") == ["parent", "parent"]
    assert session.call(lambda: "next") == ["next", "next"]


@pytest.mark.parametrize(
    "closing", ["import sys; sys.stdout.close()", "import sys; sys.stdout = None", "import os; os.close(1)"]
)
def test_ranks_print_again_after_a_cell_that_closed_what_they_print_to(
    session: Session, closing: str
) -> None:
    result = session.run(f"{closing}\nrank")
    assert result.values == {0: "0", 1: "1"}
    assert result.output[1] == "labkit: the code closed sys.stdout; open again\n"
    assert session.run("print('still', rank)").output == {0: "still 0\n", 1: "still 1\n"}


def test_a_failure_of_a_cell_that_closed_all_it_prints_to_is_told(session: Session) -> None:
    with pytest.raises(RankError, match=r"line 2, in <module>\n--> print\(1\)"):
        session.run("import os; os.close(1); os.close(2)\nprint(1)")
    assert session.run("print('again')").output == {0: "again\n", 1: "again\n"}
