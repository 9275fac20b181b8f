"""What a check records of a stretch of a rank, and the clock it is told in."""

from __future__ import annotations

import time
from types import ModuleType

import torch
import torch.distributed as dist

import labkit
from labkit.checks.case import Case
from labkit.checks.rank import Rank
from labkit.record.current import current_recorder


def one_call_in_the_middle(group: dist.ProcessGroup) -> tuple[float, float, dict[str, float]]:
    """The call's bounds by this rank's own clock, and the call as it was recorded."""
    recorder = current_recorder()
    assert recorder is not None
    rank = Rank(Case("a case", dist.get_world_size()), {}, ModuleType("student"), group, recorder)
    dist.all_reduce(torch.ones(2), group=group)
    with rank.recording("middle") as begin:
        time.sleep(0.05)
        before = time.monotonic() - begin
        dist.all_reduce(torch.ones(3), group=group)
        after = time.monotonic() - begin
    dist.all_reduce(torch.ones(4), group=group)
    (call,) = rank.result.collectives["middle"]
    return before, after, call


def test_times_count_from_the_moment_that_is_handed_out() -> None:
    """A check compares them with times of its own, taken from that moment."""
    for before, after, call in labkit.launch(one_call_in_the_middle, ranks=2).results:
        assert 0.05 <= before <= call["start"] <= call["end"] <= after
        assert call["num_bytes"] == 12
