"""`push`, `pull`, `scatter` and `gather`, and cells that nobody waits for."""

from __future__ import annotations

import time

import numpy
import pytest
import torch

import labkit
from labkit.launch import client
from labkit.launch.session import Session

pytestmark = pytest.mark.timeout(60)


def test_push_and_pull(session: Session) -> None:
    session.run("a, rank_squared = 'own', rank ** 2")
    session.push({"a": torch.arange(3), "_b": [1]}, ranks=[1])
    assert session.run("a, '_b' in globals()").values == {0: "('own', False)", 1: "(tensor([0, 1, 2]), True)"}
    assert session.pull("rank_squared") == [0, 1]
    assert session.pull(["rank", "_b"], ranks=[1]) == [[1, [1]]]
    with pytest.raises(
        labkit.LaunchError, match="rank 0 failed: NameError: name '_b' is not defined on this rank"
    ):
        session.pull("_b")
    with pytest.raises(ValueError, match="rank cannot be pushed"):
        session.push({"rank": 5})


def test_what_is_pushed_stays_one_object(session: Session) -> None:
    weight, steps = torch.zeros(2), [1]
    session.push({"weight": weight, "steps": steps})
    session.push({"pair": (weight, steps), "also": steps})
    assert session.run("pair[0] is weight, pair[1] is steps, also is steps").values[1] == "(True, True, True)"
    weight += 1
    session.run("mine = weight\nweight = None")
    session.push({"weight": weight})
    assert session.run("mine is weight, weight.tolist()").values[0] == "(True, [1.0, 1.0])"


@pytest.mark.parametrize("whole", [torch.arange(10).reshape(5, 2), numpy.arange(5), [1, 2, 3, 4, 5], "abcde"])
def test_scatter_and_gather(session: Session, whole: object) -> None:
    session.scatter("part", whole)
    assert session.run("len(part)").values == {0: "3", 1: "2"}
    assert str(session.gather("part")) == str(whole)


def test_only_what_has_parts_is_scattered(session: Session) -> None:
    for whole in ({"a": 1}, {}):
        with pytest.raises(TypeError, match="can be scattered, found dict"):
            session.scatter("part", whole)


def test_values_are_of_some_rank(session: Session) -> None:
    told = "ranks= is empty: the session has ranks 0 to 1"
    with pytest.raises(ValueError, match=told):
        session.scatter("part", [1, 2], ranks=[])
    with pytest.raises(ValueError, match=told):
        session.gather("rank", ranks=[])


def test_what_is_no_part_is_not_gathered(session: Session) -> None:
    """Numbers would be summed."""
    session.run("import torch\nloss, mean = 0.5 + rank, torch.tensor(1.0)")
    for name, kind in (("rank", "int"), ("loss", "float"), ("mean", "Tensor")):
        with pytest.raises(TypeError, match=f"a {kind} is no part of a whole: .* `pull` gives a list"):
            session.gather(name)


def test_what_was_pulled_takes_no_room_any_more(session: Session) -> None:
    directory = client.engine().directory
    session.run("data = bytes(10**6)")
    assert [len(data) for data in session.pull("data")] == [10**6, 10**6]
    assert list(directory.glob("*/*.result.pkl")) == []
    session.run("if rank == 0: only_here = data")
    with pytest.raises(labkit.LaunchError, match="only_here"):
        session.pull("only_here")
    assert list(directory.glob("*/*.result.pkl")) == []


def test_a_cell_that_nobody_waits_for(session: Session) -> None:
    names = {"x": [1]}
    running = session.run_async("import time\ntime.sleep(0.5)\nprint('done')\nx", names=names)
    names["x"].append(2)
    assert not running.done
    with pytest.raises(TimeoutError, match="still runs"):
        running.result(0.01)
    with pytest.raises(RuntimeError, match="started with --async"):
        session.run("1")
    result = running.result(20)
    assert (result.values[0], result.output[1]) == ("[1]", "done\n")  # the value as it was
    assert repr(running) == "RunningCell, finished"
    assert session.run("1 + 1").values[0] == "2"


def test_a_running_cell_is_interrupted_or_fails(session: Session) -> None:
    session.run("kept = 7")
    running = session.run_async("while True: pass")
    time.sleep(0.3)
    running.interrupt()
    with pytest.raises(labkit.LaunchError) as caught:
        running.result(20)
    assert caught.value.verdict == "interrupted"
    assert session.run("kept").values[0] == "7"
    failing = session.run_async("1 / 0")
    with pytest.raises(labkit.LaunchError, match="ZeroDivisionError"):
        failing.result(20)
    assert repr(failing) == "RunningCell, failed: error"


def test_an_interrupt_counts_from_the_moment_that_the_cell_is_given(session: Session) -> None:
    """Also where its ranks have not been sent it yet: of ten, about three came so early."""
    session.run("kept = 7")
    for _ in range(10):
        running = session.run_async("while True: pass", timeout=10)
        running.interrupt()
        with pytest.raises(labkit.LaunchError) as caught:
            running.result(20)
        assert caught.value.verdict == "interrupted"
    assert session.run("1 + 1").values[0] == "2"


def test_a_session_is_stopped_while_a_cell_runs(session: Session) -> None:
    running = session.run_async("while True: pass")
    time.sleep(0.3)
    session.stop()
    assert running.done
    assert not session.alive
