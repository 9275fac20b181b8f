"""What a rank sends, as checks count it."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.checks.case import Case, RankAnswer
from labkit.checks.lesson_11.heads_sent import left_rank
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of
from labkit.checks.shared.sums import summed_bytes
from labkit.record.current import current_recorder


def call(op: str, num_bytes: int, start: float, source: str = "native", **more: Any) -> dict[str, Any]:
    end = start + 0.01 if source == "python" else None
    usual = {"group": [0, 1], "end": end, "sent": []}
    return {"op": op, "num_bytes": num_bytes, "start": start, "source": source, **usual, **more}


def calls(*found: dict[str, Any]) -> list[tuple[str, int]]:
    return calls_of(RankAnswer(0, {}, {}, {"all": list(found)}, {}), "all")


def test_a_call_that_both_recorders_noted_counts_once() -> None:
    python = call("all_reduce", 8, 1.0, "python")
    assert calls(python, call("all_reduce", 8, 1.0105)) == [("all_reduce", 8)]
    scattered = call("reduce_scatter", 8, 1.0, "python")
    assert calls(scattered, call("all_reduce", 8, 1.001)) == [("reduce_scatter", 8)]


@pytest.mark.parametrize(
    "native",
    [call("all_reduce", 8, 1.5), call("all_reduce", 8, 1.0, group=[0, 2]), call("broadcast", 8, 1.0)],
)
def test_a_call_of_cpps_is_not_hidden_by_another(native: dict[str, Any]) -> None:
    """Neither by one at another time, nor of another group, nor of another kind."""
    assert calls(call("all_reduce", 8, 1.0, "python"), native) == [("all_reduce", 8), (native["op"], 8)]


def test_one_call_is_the_twin_of_one() -> None:
    python, native = call("all_reduce", 8, 1.0, "python"), call("all_reduce", 8, 1.001)
    assert calls(python, native, native) == [("all_reduce", 8)] * 2


def test_a_call_that_lasts_is_left_for_what_comes_late() -> None:
    """Of two under way the one that ends first is the twin, so that both have one."""
    lasting, short = call("all_reduce", 8, 1.0, "python", end=9.0), call("all_reduce", 8, 1.1, "python")
    both = [("all_reduce", 8)] * 2
    assert calls(lasting, short, call("all_reduce", 8, 1.1), call("all_reduce", 8, 5.0)) == both


def test_thousands_of_calls_are_read_in_no_time() -> None:
    found = [call("all_reduce", 8, float(n), "python", end=float(n)) for n in range(20_000)]
    found += [call("all_reduce", 8, n + 0.5) for n in range(20_000)]
    begin = time.monotonic()
    assert len(calls(*found)) == 40_000
    assert time.monotonic() - begin < 10.0  # one beside the other they would take minutes


def test_sums_that_cpp_makes_count() -> None:
    assert summed_bytes([call("all_reduce", 8, 1.0), call("broadcast", 8, 1.0)]) == 12
    assert summed_bytes([call("reduce_scatter", 8, 1.0, "python"), call("all_reduce", 8, 1.0)]) == 4


def test_an_exchange_that_cpp_makes_leaves_in_even_parts() -> None:
    assert left_rank([call("all_to_all", 8, 1.0), call("all_to_all", 8, 1.0, sent=[6, 2])], 0) == 6


def sums_in_both_ways(group: dist.ProcessGroup) -> float:
    """Bytes of an all_reduce of 12, and of a functional one of 16."""
    from torch.distributed import _functional_collectives as functional

    recorder = current_recorder()
    assert recorder is not None
    rank = Rank(Case("a case", dist.get_world_size()), {}, ModuleType("student"), group, recorder)
    with rank.recording("training"):
        dist.all_reduce(torch.ones(3), group=group)
        functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", group))
    return summed_bytes(rank.result.collectives["training"])


def test_functional_collectives_are_summed() -> None:
    assert labkit.launch(sums_in_both_ways, ranks=2).results == [28, 28]
