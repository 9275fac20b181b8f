"""Where a step's time goes, against counting every moment of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.record import Collective, Span
from labkit.record.files import Record
from labkit.show.breakdown import draw_breakdown, shares_of_ranks
from labkit.theory.breakdown import (
    StepShare,
    clocks_ahead,
    exposed,
    length,
    mean_share,
    step_share,
    stragglers,
    union,
)

STRETCH = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))
STRETCHES = st.lists(STRETCH, max_size=8)
CALLS = st.lists(st.tuples(STRETCH, st.integers(0, 20)).map(lambda c: (*c[0], c[0][0] + c[1])), max_size=6)


def moments(stretches: list[tuple[int, int]]) -> set[int]:
    """The unit of time from n to n + 1 is n."""
    return {n for begin, end in stretches for n in range(begin, end)}


@settings(deadline=None)
@given(STRETCHES, STRETCHES)
def test_lengths_and_what_is_exposed(hiding: list[tuple[int, int]], seen: list[tuple[int, int]]) -> None:
    assert length(seen) == len(moments(seen))
    assert exposed(hiding, seen) == len(moments(seen) - moments(hiding))
    joined = union(seen)
    assert all(b < c for (_, b), (c, _) in pairwise(joined))


@settings(deadline=None)
@given(STRETCHES, CALLS, st.integers(0, 15), st.integers(0, 30))
def test_the_four_parts_of_a_step(
    compute: list[tuple[int, int]], calls: list[tuple[int, int, int]], begin: int, width: int
) -> None:
    step = set(range(begin, begin + width))
    computing = moments(compute) & step
    moving = moments([(max(b, came), e) for b, e, came in calls if came < e]) & step
    waiting = moments([(b, min(came, e)) for b, e, came in calls]) & step
    expected = StepShare(
        len(computing),
        len(moving - computing),
        len(waiting - moving - computing),
        len(step - computing - moving - waiting),
    )
    assert step_share(begin, begin + width, compute, calls) == expected
    assert expected.total == width


def test_clocks_are_told_apart_by_most_of_the_ends() -> None:
    ends = [[1.0, 2.0, 3.0], [101.0, 102.5, 103.0], [0.5, 1.5, 2.5]]
    assert clocks_ahead(ends) == [0.0, 100.0, -0.5]
    assert clocks_ahead([[], []]) == [0.0, 0.0]


def test_who_came_last_and_what_the_others_lost() -> None:
    assert stragglers([[0.0, 5.0], [1.0, 4.0], [3.0, 5.0]]) == [(2, 5.0), (0, 1.0)]
    assert stragglers([[0.0, 5.0]]) == [(0, 0.0), (0, 0.0)]


def test_a_mean_of_steps() -> None:
    shares = [StepShare(1.0, 2.0, 3.0, 4.0), StepShare(3.0, 2.0, 1.0, 0.0)]
    assert mean_share(shares) == StepShare(2.0, 2.0, 2.0, 2.0)


def reduced(rank: int, start: float, order: int) -> Collective:
    return Collective(
        rank=rank, op="all_reduce", num_bytes=4, shape=(1,), dtype="float32", group=(0, 1), peer=None,
        order=order, start=start, end=10.0 * order + 8.0, source="python", line="",
    )  # fmt: skip


def record() -> Record:
    """Two steps of 10 s on two ranks: rank 1 computes for 5 s, rank 0 for 2, then they reduce until 8."""
    spans, calls = [], []
    for step in range(2):
        begin = 10.0 * step
        for rank, seconds in ((0, 2.0), (1, 5.0)):
            spans.append(Span(rank, "step", "step", begin, begin + 10.0))
            spans.append(Span(rank, "forward", "forward", begin, begin + seconds))
            calls.append(reduced(rank, begin + seconds, step))
    return Record(2, calls, spans, [], [])


def test_shares_of_a_recorded_run() -> None:
    assert shares_of_ranks(record(), "step") == [StepShare(2.0, 3.0, 3.0, 2.0), StepShare(5.0, 3.0, 0.0, 2.0)]
    assert shares_of_ranks(record()) == [StepShare(4.0, 6.0, 6.0, 4.0), StepShare(10.0, 6.0, 0.0, 4.0)]


def test_warm_up_is_left_out_and_must_leave_a_step() -> None:
    slow = replace(record(), spans=[Span(0, "import", "compute", 8.0, 10.0), *record().spans])
    assert shares_of_ranks(slow, "step", 1)[0] == StepShare(2.0, 3.0, 3.0, 2.0)
    with pytest.raises(ValueError, match="more than 2 spans named 'step' on rank 0, found 2"):
        shares_of_ranks(record(), "step", 2)


def test_without_a_step_it_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"^nothing was recorded: no communication and"):
        draw_breakdown(replace(record(), spans=[], collectives=[]))
    with pytest.raises(ValueError, match=r"^warm_up=1 leaves out steps: say how they are named"):
        draw_breakdown(record(), warm_up=1)


def test_the_drawing_says_it_in_words() -> None:
    told = draw_breakdown(record(), "step").alt
    assert (
        "rank 0: compute 2000.0 ms, exposed communication 3000.0 ms, waiting for a straggler 3000.0 ms"
        in told
    )


def kernels(rank: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Microseconds of matrix products on one stream of a GPU, and of NCCL's all-reduces on another."""
    draw = Random(rank)
    compute, moment = [], 1000
    for _ in range(40):
        end = moment + draw.randint(5, 60)
        compute.append((moment, end))
        moment = end + draw.randint(0, 30)
    communication, moment = [], 1010
    for _ in range(12):
        end = moment + draw.randint(20, 140)
        communication.append((moment, end))
        moment = end + draw.randint(0, 60)
    return compute, communication


@pytest.mark.parametrize(("rank", "overlap"), [(0, 65.97), (1, 64.79)])
def test_holistic_trace_analysis_finds_the_same_overlap(rank: int, overlap: float) -> None:
    """overlap: `comp_comm_overlap_pctg` that HolisticTraceAnalysis 0.5.0 printed for a trace of these kernels
    (sgemm_128x64_nn on stream 7, ncclDevKernel_AllReduce_Sum_f32_RING_LL on stream 20).
    """
    compute, communication = kernels(rank)
    hidden = 1 - exposed(compute, communication) / length(communication)
    assert round(100 * hidden, 2) == overlap
