"""What is watched lives no longer than it would unwatched."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.record.memory import SavedTensors

pytestmark = pytest.mark.timeout(60)
ENOUGH = 300_000  # numbers, so that no socket takes the message before its receiver asks for it


def dies_with_its_last_name() -> bool:
    """Whether the work of a call is gone when the caller forgets it."""
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    seen = weakref.ref(work)
    work.wait()
    another = dist.all_reduce(torch.ones(2), async_op=True)
    assert another is not None
    forgotten = weakref.ref(another)
    del work, another
    gc.collect()
    dist.barrier()
    return seen() is None and forgotten() is None


def test_recording_keeps_no_work() -> None:
    assert labkit.launch(dies_with_its_last_name, ranks=2).results == [True, True]


def forgets_its_send() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(ENOUGH), 1)  # gloo drops the message with its work
        gc.collect()
        dist.barrier()
    else:
        dist.barrier()
        dist.recv(torch.empty(ENOUGH), 0)


def test_a_send_whose_work_is_forgotten_does_not_arrive_here_either() -> None:
    with pytest.raises(labkit.LaunchError, match="rank 1 waits in recv from rank 0") as raised:
        labkit.launch(forgets_its_send, ranks=2, timeout=30)
    assert raised.value.verdict == "deadlock"


def waits_for_one_of_two() -> None:
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(3), torch.empty(3)
    works = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
    works[1].wait()
    dist.barrier()


def test_a_send_that_nobody_waits_for_has_no_end() -> None:
    calls = labkit.launch(waits_for_one_of_two, ranks=2).collectives
    assert [c.end is None for c in calls if c.op == "send"] == [True, True]
    assert [c.end is None for c in calls if c.op == "recv"] == [False, False]


def test_saved_tensors_count_only_while_they_are_kept() -> None:
    x, saved = torch.ones(10, requires_grad=True), SavedTensors()
    with saved.recording():
        first = x.exp()
        second = x.exp()
    assert saved.num_bytes == first.nbytes + second.nbytes
    del first
    assert saved.num_bytes == second.nbytes
