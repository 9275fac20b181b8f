"""Unusual calls, that torch takes or refuses, and what a rank's recorder makes of them."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

import labkit
from labkit.checks.shared.worked import Worked
from labkit.launch.session import Session
from labkit.record.current import current_recorder
from labkit.record.journal import Journal
from labkit.record.live import LiveBytes, bytes_of_process
from labkit.record.memory import measure_activations, measure_step, tensor_bytes
from labkit.record.state import RUNNING

pytestmark = pytest.mark.timeout(60)


def groups_in_odd_ways() -> list[int]:
    """Ranks as NumPy has them, another order on each rank, an iterator, and all of them."""
    rank = dist.get_rank()
    groups = [
        dist.new_group(np.arange(2)),
        dist.new_group([rank, 1 - rank]),
        dist.new_group(r for r in range(2)),
        dist.new_group(None if rank else [0, 1]),
    ]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=np.int64(3))  # type: ignore[arg-type]
    else:
        dist.recv(torch.ones(1), 0, tag=3)
    return [dist.get_world_size(group) for group in groups]


def test_groups_may_be_made_in_odd_ways() -> None:
    job = labkit.launch(groups_in_odd_ways, ranks=2)
    assert job.results == [[2] * 4] * 2
    assert [c.op for c in job.collectives if c.rank == 1] == ["all_reduce"] * 4 + ["recv"]
    assert {c.group for c in job.collectives} == {(0, 1)}


def refused_calls() -> list[object]:
    """What torch does not take, each tried again as it should be; and whether the page says that it runs."""
    recorder = current_recorder()
    assert recorder is not None
    seen: list[object] = []
    with pytest.raises(ValueError, match="out of range"):
        dist.new_group([0, 7])
    with pytest.raises(RuntimeError):
        dist.all_gather_into_tensor(torch.empty(3), torch.ones(4))
    seen.append(recorder.page.phase() == RUNNING)
    into = torch.empty(8)
    dist.all_gather_into_tensor(into, torch.ones(4))
    with pytest.raises(TypeError):
        dist.send(torch.ones(1), 1 - dist.get_rank(), tag="seven")  # type: ignore[arg-type]
    return [*seen, len(recorder.entries), len(recorder.new_groups)]


def test_what_torch_refuses_was_not_called() -> None:
    job = labkit.launch(refused_calls, ranks=2)
    assert job.results == [[True, 1, 0]] * 2
    assert [(c.op, c.num_bytes) for c in job.collectives] == [("all_gather", 16)] * 2


def waits_twice() -> bool:
    """Rank 1 comes late: rank 0 gives up waiting, and waits again."""
    rank, x = dist.get_rank(), torch.ones(4)
    if rank == 1:
        dist.recv(torch.empty(1), 0)
    work = dist.all_reduce(x, async_op=True)
    gave_up = False
    if rank == 0:
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError:
            gave_up = True
        dist.send(torch.ones(1), 1)
    work.wait()
    return gave_up


def test_a_wait_that_was_given_up_can_be_taken_up_again() -> None:
    job = labkit.launch(waits_twice, ranks=2)
    assert job.results == [True, False]
    assert all(c.end is not None for c in job.collectives)


def test_groups_alone_are_compared_with_those_of_later_cells(session: Session) -> None:
    """One of the ranks has more to say in the first cell than the other."""
    session.run("import torch, torch.distributed as dist")
    session.run("g = dist.new_group([0])\nif rank == 0: dist.all_reduce(torch.ones(1), group=g)")
    session.run("h = dist.new_group()\ndist.all_reduce(torch.ones(1), group=h)")


def funcol_products() -> tuple[int, int, list[str]]:
    """Products of a tensor that a functional collective has made, as counted, and as a journal has them."""
    recorder = current_recorder()
    assert recorder is not None
    w = torch.ones(4, 5)
    with Worked() as worked, Journal(recorder) as journal:
        functional.all_gather_tensor(torch.ones(3, 4), 0, dist.group.WORLD) @ w
    return worked.products, sum(act.flops for act in journal.acts), [act.kind for act in journal.acts]


def waited_for_by_futures() -> list[list[tuple[str, int | None]]]:
    """Of calls that are waited for by futures of their handles' futures: what a journal has of each."""
    recorder = current_recorder()
    assert recorder is not None
    found = []

    def by_one_of_its_own(work: dist.Work) -> None:
        over: torch.futures.Future[None] = torch.futures.Future()
        work.get_future().add_done_callback(lambda future: over.set_result(None))
        over.wait()

    for wait in (
        by_one_of_its_own,
        lambda work: torch.futures.collect_all([work.get_future()]).wait(),
        lambda work: torch.futures.wait_all([work.get_future()]),
        lambda work: work.get_future().then(lambda future: future.value()).wait(),
    ):
        with Journal(recorder) as journal:
            wait(dist.all_reduce(torch.ones(1), async_op=True))
        found.append([(act.kind, act.number) for act in journal.acts if act.kind != "compute"])
    return found


def test_who_waits_for_a_future_of_a_future_waits_for_its_call() -> None:
    job = labkit.launch(waited_for_by_futures, ranks=2)
    assert job.results == [[[("start", 0), ("wait", 0)]] * 4] * 2


def test_products_of_wrapped_tensors_are_counted() -> None:
    job = labkit.launch(funcol_products, ranks=2)
    assert job.results == [(2 * 6 * 4 * 5, 2 * 6 * 4 * 5, ["compute"])] * 2


def test_products_in_inference_mode_are_counted() -> None:
    layer, x = nn.Linear(4, 5), torch.ones(2, 3, 4)
    with torch.inference_mode(), Worked() as worked:
        layer(x)
        x @ layer.weight.T
    assert worked.products == 2 * (2 * 2 * 3 * 4 * 5)


def test_a_sparse_tensor_is_passed_over() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    with LiveBytes() as live:
        embedding(torch.tensor([1, 2])).sum().backward()
    assert live.peak > 0
    assert bytes_of_process() >= embedding.weight.nbytes


def test_a_change_in_place_is_told_where_activations_are_measured() -> None:
    layer = nn.Linear(4, 4)

    def loss() -> Tensor:
        h = torch.sigmoid(layer(torch.ones(2, 4)))
        h.mul_(2)
        return h.sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        measure_step(layer, torch.optim.SGD(layer.parameters(), 0.1), loss)
    assert measure_activations(layer, lambda: layer(torch.ones(2, 4)).relu_().sum()) > 0


def test_storages_without_memory_are_counted_each() -> None:
    assert tensor_bytes([torch.empty(10, device="meta"), torch.empty(100, device="meta")]) == 440


def test_the_peak_of_a_cell_is_its_own(session: Session) -> None:
    session.run("import torch; x = torch.ones(50_000_000); del x")
    large = session.record().memory[0].host_bytes
    session.run("1")
    assert session.record().memory[0].host_bytes < large - 100_000_000
