"""What is recorded about ranks, against what the test knows they did."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import hosts
from labkit.record import Collective
from labkit.record.current import current_recorder
from labkit.record.over_nccl import RecorderOverNccl
from labkit.show.sharding import sent_bytes
from labkit.torch_private_distributed import CALLS, GlooTalk

pytestmark = pytest.mark.timeout(60)


def of_rank(calls: list[Collective], rank: int) -> list[Collective]:
    return [call for call in calls if call.rank == rank]


def every_call(group: dist.ProcessGroup) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(6, dtype=torch.float64)
    dist.all_reduce(x, group=group)
    dist.all_gather([torch.empty_like(x) for _ in range(n)], x)
    dist.reduce_scatter(torch.empty(6), [torch.ones(6) for _ in range(n)])
    dist.broadcast(x, 0)
    dist.all_to_all_single(torch.empty(6), torch.ones(6))
    dist.barrier()
    dist.reduce(x, 0)
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.int64), 1)
    elif rank == 1:
        dist.recv(torch.ones(3, dtype=torch.int64), 0)


def calls_as_nccl_makes_them(group: dist.ProcessGroup) -> list[list[bool]]:
    """Which of an all_reduce, a send and a receive are over: before, and after, their batch was waited for.

    NCCL gives nothing to wait for where torch waits itself, and one thing for a whole batch.
    """
    watching, talk, peer = current_recorder(), GlooTalk.of(group), 1 - dist.get_rank()
    assert watching is not None
    assert talk is not None
    recorder, x, seen = RecorderOverNccl(watching.rank, watching.page), torch.ones(4), []

    def make(name: str, *args: object) -> None:
        recorder.posted(CALLS[name], recorder.begin(CALLS[name], group, args, {}), None)

    def note() -> None:
        seen.append([entry.end is not None for entry in recorder.entries])

    make("allreduce", [x], dist.AllreduceOptions())
    recorder.batch_begins()
    make("send", [x], peer, 0)
    make("recv", [x], peer, 0)
    work, sent = talk.hear(torch.empty(4), peer, 7), talk.say(x, peer, 7)
    recorder.batch_ends(work)
    note()
    recorder.wait(work, dist.Work.wait, (), {})
    note()
    talk.wait(sent, timedelta(seconds=20))
    return seen


def test_calls_of_nccl_end_with_what_is_waited_for() -> None:
    for seen in labkit.launch(calls_as_nccl_makes_them, ranks=2, backend="gloo").results:
        assert seen == [[True, False, False], [True, True, True]]


def asks_for_what_comes_late() -> None:
    x = torch.ones(4)
    dist.barrier()  # one rank may have begun long before the other
    for again_and_again in (True, False):
        if dist.get_rank() == 1:
            time.sleep(0.2)
        handle = dist.all_reduce(x, async_op=True)
        while again_and_again and not handle.is_completed():
            pass
        for _ in range(3):
            handle.is_completed()
        time.sleep(0.5)
        assert handle.is_completed()


def test_who_asks_again_and_again_until_a_call_is_over_waits_for_it() -> None:
    made = of_rank(labkit.launch(asks_for_what_comes_late, ranks=2).collectives, 0)
    calls = [call for call in made if call.op == "all_reduce"]
    assert calls[0].end is not None
    assert calls[0].start + 0.1 < calls[0].end < calls[1].start - 0.4
    assert calls[1].end is None


def has_woken_cuda() -> bool:
    return torch.cuda.is_initialized()


def test_ranks_over_gloo_leave_cuda_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are GPUs: here a rank that tried to take one would fail."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    assert labkit.launch(has_woken_cuda, ranks=2, backend="gloo").results == [False, False]


@pytest.mark.days
def test_each_call_with_its_bytes_shape_group_and_peer() -> None:
    job = labkit.launch(every_call, ranks=3)
    expected = [
        ("all_reduce", 48, (6,), "float64", None),
        ("all_gather", 48, (6,), "float64", None),
        ("reduce_scatter", 72, (6,), "float32", None),
        ("broadcast", 48, (6,), "float64", None),
        ("all_to_all", 24, (6,), "float32", None),
        ("barrier", 0, (), "", None),
        ("reduce", 48, (6,), "float64", None),
    ]
    ends = {0: [("send", 24, (3,), "int64", 1)], 1: [("recv", 24, (3,), "int64", 0)], 2: []}
    for rank in range(3):
        seen = [(c.op, c.num_bytes, c.shape, c.dtype, c.peer) for c in of_rank(job.collectives, rank)]
        assert seen == expected + ends[rank]
    assert {c.group for c in job.collectives} == {(0, 1, 2)}
    assert {c.source for c in job.collectives} == {"python"}
    assert [c.order for c in of_rank(job.collectives, 2)] == list(range(7))
    assert [c.start for c in job.collectives] == sorted(c.start for c in job.collectives)  # of all ranks
    assert all(c.end is not None and 0 <= c.start <= c.end < job.wall_seconds for c in job.collectives)
    assert all("test_records.py:" in c.line for c in job.collectives)


def test_who_gets_how_much_of_an_all_to_all() -> None:
    """Rank r has r + q rows of 3 numbers for rank q, and keeps 2r of them."""

    def uneven() -> None:
        rank = dist.get_rank()
        counts = [rank + other for other in range(3)]
        rows = torch.ones(sum(counts), 3)
        dist.all_to_all_single(torch.empty_like(rows), rows, counts, counts)
        dist.all_to_all_single(torch.empty(6), torch.ones(6))

    job = labkit.launch(uneven, ranks=3)
    for rank in range(3):
        rows, halves = of_rank(job.collectives, rank)
        assert rows.sent == rows.received == tuple(12 * (rank + other) for other in range(3))
        assert sent_bytes(rows) == 12 * (3 * rank + 3 - 2 * rank)
        assert halves.sent == halves.received == (8, 8, 8)
        assert sent_bytes(halves) == 16


def test_who_gets_how_much_of_lists() -> None:
    def listed() -> None:
        dist.all_to_all([torch.empty(1) for _ in range(3)], [torch.ones(1) for _ in range(3)])

    try:
        job = labkit.launch(listed, ranks=3)
    except labkit.LaunchError as error:
        if "does not support alltoall" in str(error):
            pytest.skip("gloo of this torch exchanges no lists")
        raise
    for rank in range(3):
        (call,) = of_rank(job.collectives, rank)
        assert (call.sent, call.received, sent_bytes(call)) == ((4, 4, 4), (4, 4, 4), 8)


def test_calls_on_a_smaller_group_and_without_waiting() -> None:
    def pairs() -> None:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        work = dist.all_reduce(torch.ones(2), group=groups[dist.get_rank() // 2], async_op=True)
        assert work is not None
        time.sleep(0.1)
        work.wait()

    calls = [c for c in labkit.launch(pairs, ranks=4).collectives if c.op == "all_reduce"]
    assert [c.group for c in sorted(calls, key=lambda c: c.rank)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert all(c.end is not None and c.end - c.start >= 0.1 for c in calls)


def test_a_name_imported_before_is_recorded_too() -> None:
    from torch.distributed import all_reduce

    job = labkit.launch(lambda: all_reduce(torch.ones(2)), ranks=2)
    assert [c.op for c in job.collectives] == ["all_reduce"] * 2


def test_what_cpp_starts_is_added_as_native() -> None:
    def step() -> None:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4))
        dist.all_reduce(torch.ones(5))
        model(torch.randn(2, 3)).sum().backward()

    job = labkit.launch(step, ranks=2)
    for rank in range(2):
        calls = of_rank(job.collectives, rank)
        reduces = [(c.source, c.shape, c.num_bytes) for c in calls if c.op == "all_reduce"]
        assert reduces == [("python", (5,), 20), ("native", (16,), 64)]  # the gradients: 3 * 4 + 4 numbers
        assert [c.order for c in calls] == list(range(len(calls)))
        assert all(c.group == (0, 1) for c in calls)
        assert all(c.end is None for c in calls if c.source == "native")


def test_functional_collectives_are_native() -> None:
    def functional() -> float:
        import torch.distributed._functional_collectives as functional_collectives

        return float(functional_collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum())

    job = labkit.launch(functional, ranks=2)
    assert job.results == [6.0, 6.0]
    assert [(c.op, c.source, c.num_bytes) for c in job.collectives] == [("all_reduce", "native", 12)] * 2


def test_spans_and_slow_links_make_the_timeline() -> None:
    def work() -> None:
        with labkit.span("layer 1", kind="forward"):
            time.sleep(0.05)
        labkit.slow_link(ms=20)
        dist.barrier()

    job = labkit.launch(work, ranks=2)
    mine = [(s.name, s.kind) for s in job.timeline if s.rank == 0]
    assert mine == [
        ("layer 1", "forward"),
        ("slow link, 20 ms", "communication"),
        ("barrier", "communication"),
    ]
    first = job.timeline[0]
    assert 0.05 <= first.end - first.start < 0.5
    assert 0 <= min(s.start for s in job.timeline) < 0.05


def test_outside_ranks_spans_and_progress_do_nothing() -> None:
    with labkit.span("alone"):
        assert list(labkit.progress(3)) == [0, 1, 2]
        assert list(labkit.progress(["a", "b"])) == ["a", "b"]


def test_memory_of_each_rank() -> None:
    def allocate() -> None:
        torch.ones(32 << 20)  # 128 MiB

    labkit.launch(lambda: None, ranks=1)  # what the engine imports after its first job counts in the next
    before = labkit.launch(lambda: None, ranks=1).memory[0].host_bytes
    after = labkit.launch(allocate, ranks=1).memory[0]
    assert 120 << 20 < after.host_bytes - before < 160 << 20
    assert after.device_bytes is None, "on the CPU there is no device"


def test_record_false_records_nothing() -> None:
    job = labkit.launch(lambda: dist.barrier(), ranks=2, record=False)
    assert (job.collectives, job.spans, job.memory) == ([], [], [])
