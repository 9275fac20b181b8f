"""Calls of ranks that do not fit each other, on real ranks: each is named, and none is waited out."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit

pytestmark = [pytest.mark.timeout(120), pytest.mark.days()]


def send_and_receive(sent: torch.Tensor, into: torch.Tensor, send_tag: int = 0, receive_tag: int = 0) -> None:
    if dist.get_rank() == 0:
        dist.send(sent, 1, tag=send_tag)
    else:
        dist.recv(into, 0, tag=receive_tag)


def smaller_than_expected() -> None:
    send_and_receive(torch.ones(2), torch.zeros(4))


def larger_than_expected() -> None:
    send_and_receive(torch.ones(4), torch.zeros(2))


def another_dtype() -> None:
    send_and_receive(torch.ones(2), torch.zeros(2, dtype=torch.int32))


def another_tag() -> None:
    send_and_receive(torch.ones(2), torch.zeros(2), 1, 2)


def another_group() -> None:
    pair = dist.new_group([1, 0])
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1, group=pair)
    dist.recv(torch.ones(2), 1 - dist.get_rank())


def rank_that_the_group_has_not() -> None:
    """What (rank - 1) // world_size is."""
    dist.recv(torch.ones(2), group_src=dist.get_rank() - 2)


def another_source() -> None:
    dist.broadcast(torch.ones(2), dist.get_rank())


def another_target() -> None:
    dist.reduce(torch.ones(2), dist.get_rank())


def another_reduction() -> None:
    dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


def another_order_of_started_calls() -> None:
    sizes = (2, 5) if dist.get_rank() else (5, 2)
    works = [dist.all_reduce(torch.ones(size), async_op=True) for size in sizes]
    for work in works if dist.get_rank() else works[::-1]:
        work.wait()


def group_on_one_rank() -> None:
    if dist.get_rank() == 0:
        dist.new_group([0, 1])


def different_groups() -> None:
    dist.new_group([0, 1] if dist.get_rank() else [0])


def monitored_barrier_on_one_rank() -> None:
    if dist.get_rank() == 1:
        dist.monitored_barrier()


def crossed_groups_of_the_same_ranks() -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups if dist.get_rank() else groups[::-1]:
        dist.all_reduce(torch.ones(2), group=group)


def exchange(sent: list[int], expected: list[int], group: dist.ProcessGroup | None = None) -> None:
    rows = torch.ones(sum(sent), 3)
    dist.all_to_all_single(torch.empty(sum(expected), 3), rows, expected, sent, group=group)


def more_rows_expected() -> None:
    exchange([1, 1], [3, 1]) if dist.get_rank() else exchange([1, 2], [1, 1])


def fewer_rows_expected() -> None:
    exchange([1, 1], [1, 1]) if dist.get_rank() else exchange([1, 2], [1, 1])


def rows_from_who_sends_none() -> None:
    exchange([0, 1], [2, 1]) if dist.get_rank() else exchange([1, 0], [1, 0])


def other_rows_for_itself() -> None:
    exchange([2, 1], [1, 1]) if dist.get_rank() == 0 else exchange([1, 1], [1, 1])


def rows_of_another_dtype() -> None:
    dtype = torch.float64 if dist.get_rank() else torch.float32
    numbers = torch.ones(4 if dist.get_rank() else 8, dtype=dtype)  # as many bytes
    dist.all_to_all_single(torch.empty_like(numbers), numbers)


FLOATS = r"of float32 \(2,\)"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (smaller_than_expected, "rank 0 sent 8 bytes of float32 to rank 1 at .* received it as 16 bytes of"),
        (larger_than_expected, r"different sizes: rank 1 recv .* \(2,\) at .*, rank 0 send .* \(4,\)"),
        (another_dtype, "sent 8 bytes of float32 to rank 1 .* received it as 8 bytes of int32"),
        (another_tag, r"rank 0 send to rank 1 \(tag 1\) .*, rank 1 recv from rank 0 \(tag 2\)"),
        (
            another_group,
            "different groups: rank 1 recv .* on ranks 0 and 1, rank 0 send .* on another group of the same",
        ),
        (rank_that_the_group_has_not, "recv from rank -[12] of a group that has ranks 0 to 1"),
        (another_source, rf"rank 0 broadcast \(root rank 0\) {FLOATS} .*, rank 1 broadcast \(root rank 1\)"),
        (another_target, r"rank \d reduce \(sum, root rank \d\) "),
        (another_reduction, r"rank 0 called all_reduce \(sum\) .*, rank 1 called all_reduce \(max\)"),
        (another_order_of_started_calls, r"different sizes as call \d on ranks 0 and 1"),
        (group_on_one_rank, "rank 0 waits in new_group, but rank 1 has finished"),
        (different_groups, r"new_group \(of ranks 0(, 1)?\) .* new_group \(of ranks 0(, 1)?\)"),
        (monitored_barrier_on_one_rank, "rank 1 waits in barrier, but rank 0 has finished"),
        (crossed_groups_of_the_same_ranks, "rank 1 waits in all_reduce on another group of the same ranks"),
        (more_rows_expected, "rank 0 sen.s? 24 bytes of float32 to rank 1 in all_to_all.* expect.* 36 bytes"),
        (
            fewer_rows_expected,
            "rank 0 sen.s? 24 bytes of float32 to rank 1 in all_to_all.* expect.* 12 bytes",
        ),
        (rows_from_who_sends_none, "rank 0 sen.s? 0 bytes of float32 to rank 1 in all_to_all.* 24 bytes"),
        (other_rows_for_itself, "rank 0 sends 24 bytes of float32 to itself in .*, but expects 12 bytes"),
        (rows_of_another_dtype, r"rank 0 called all_to_all of .*float32 .*, rank 1 .*float64"),
    ],
)
def test_what_does_not_fit_is_named(function: Callable[[], None], words: str) -> None:
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(function, ranks=2, timeout=30)
    assert caught.value.verdict in ("error", "deadlock")
    assert re.search(words, str(caught.value)), str(caught.value)
    assert "larger timeout" not in str(caught.value)


def counts_over(wrong: tuple[int, ...]) -> None:
    """Experts' ranks are 0 and 1, and 2 and 3; ranks in `wrong` exchange their counts with their replica."""
    rank = dist.get_rank()
    pairs = {members: dist.new_group(list(members)) for members in ((0, 1), (2, 3), (0, 2), (1, 3))}
    experts, replicas = (next(g for m, g in list(pairs.items())[i:] if rank in m) for i in (0, 2))
    counts = torch.tensor([1 + rank, 1 + 2 * rank])
    expected = torch.empty_like(counts)
    dist.all_to_all_single(expected, counts, group=replicas if rank in wrong else experts)
    exchange(counts.tolist(), expected.tolist(), experts)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            (0, 1, 2, 3),
            r"rank \d sen.s? \d+ bytes of float32 to (rank \d|itself) in all_to_all.* expect.* \d+ bytes",
        ),
        (
            (1,),
            "rank 0 waits in all_to_all on ranks 0 and 1, but rank 1 waits in all_to_all on ranks 1 and 3",
        ),
    ],
)
def test_counts_that_went_over_another_group_are_named(wrong: tuple[int, ...], words: str) -> None:
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(counts_over, wrong, ranks=4, timeout=30)
    assert caught.value.verdict in ("error", "deadlock")
    assert re.search(words, str(caught.value)), str(caught.value)


def backward_of_ddp_on_one_rank() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    if dist.get_rank() == 0:
        model(torch.ones(1, 2)).sum().backward()


def ddp_on_one_rank() -> None:
    if dist.get_rank() == 0:
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("function", "inside"),
    [(backward_of_ddp_on_one_rank, "backward()"), (ddp_on_one_rank, "DistributedDataParallel()")],
)
def test_a_call_of_torchs_own_that_one_rank_waits_in_is_named(
    function: Callable[[], None], inside: str
) -> None:
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(function, ranks=2, timeout=15)
    assert f"rank 0 still running, inside {inside}, where torch communicates by itself" in str(caught.value)
    assert "timeout that is too short" not in str(caught.value)


def test_messages_of_two_tags_may_cross() -> None:
    def work() -> float:
        x, y = torch.zeros(2), torch.zeros(3)
        if dist.get_rank() == 0:
            works = [dist.isend(torch.ones(2), 1, tag=1), dist.isend(torch.ones(3), 1, tag=2)]
            for sent in works:
                assert sent is not None
                sent.wait()
        else:
            dist.recv(y, 0, tag=2)
            dist.recv(x, 0, tag=1)
        return float(x.sum() + y.sum())

    assert labkit.launch(work, ranks=2).results == [0.0, 5.0]


def test_groups_that_only_their_members_make() -> None:
    def work() -> float:
        pair = [0, 1] if dist.get_rank() < 2 else [2, 3]
        group = dist.new_group(pair, use_local_synchronization=True)
        x = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(x, group=group)
        return float(x)

    assert labkit.launch(work, ranks=4).results == [1.0, 1.0, 5.0, 5.0]
