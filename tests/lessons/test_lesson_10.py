"""Lesson 10: what its checks measure does not depend on the clock, and its replay on known cases."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_10.acts import all_from_python
from labkit.checks.lesson_10.fast import PLAIN_SECONDS, fast_case, model_of
from labkit.checks.lesson_10.overlapping import hidden_bytes
from labkit.checks.lesson_10.plain_sgd import USUAL_RATE
from labkit.checks.source.submission import Submission, collect
from labkit.record.current import current_recorder
from labkit.record.journal import Journal, flops_of
from labkit.record.replay import Act, CannotReplay, Machine, replay
from labkit.show import draw_timeline

pytestmark = pytest.mark.timeout(170)

RANKS = 4
SLOW = Machine(flops=1.0, memory=float("inf"), launch=0.0, alpha=0.5, bandwidth=1.0)
EVERYBODY = (0, 1)


def start(number: int, op: str = "all_reduce", num_bytes: int = 4, **more: int) -> Act:
    return Act("start", number=number, op=op, num_bytes=num_bytes, members=EVERYBODY, **more)


def compute(seconds: int) -> Act:
    return Act("compute", flops=seconds, ops=1)


def wait(number: int) -> Act:
    return Act("wait", number=number)


def test_a_call_begins_when_the_last_rank_has_come() -> None:
    acts = [[compute(3), start(0), compute(2), wait(0)], [compute(10), start(0), wait(0)]]
    record = replay(acts, SLOW)
    calls = {c.rank: (c.start, c.end) for c in record.collectives}
    # two messages of latency, and 2 x 1/2 x 4 bytes over the link: 5 seconds from 10
    assert calls == {0: (3.0, 15.0), 1: (10.0, 15.0)}
    assert [(s.rank, s.start, s.end) for s in record.spans] == [(0, 0.0, 3.0), (1, 0.0, 10.0), (0, 3.0, 5.0)]


def test_what_is_computed_from_the_moment_of_a_call_is_drawn_too() -> None:
    acts = [[compute(3), start(0), compute(2), wait(0)], [compute(10), start(0), wait(0)]]
    (axes,) = draw_timeline(replay(acts, SLOW)).figure.axes
    assert len(axes.containers) == 5, "three stretches of computation, and two calls"


def test_calls_share_a_link_one_after_the_other() -> None:
    own = [start(0), start(1), wait(1), wait(0)]
    record = replay([own, own], SLOW)
    assert [(c.order, c.end) for c in record.collectives if c.rank == 0] == [(0, 10.0), (1, 10.0)]


def test_messages_cross_in_both_directions_at_once() -> None:
    def swap(me: int) -> list[Act]:
        there = start(0, "send", peer=1 - me)
        return [there, start(1, "recv", peer=1 - me), wait(0), wait(1)]

    record = replay([swap(0), swap(1)], SLOW)
    assert {c.end for c in record.collectives} == {4.5}


def test_an_all_to_all_lasts_as_long_as_the_busiest_link() -> None:
    """A message of latency, and 10 bytes to or from the rank with most."""
    acts = [[start(0, "all_to_all", 64, crossing=most), wait(0)] for most in (4, 10)]
    assert {c.end for c in replay(acts, SLOW).collectives} == {10.5}


def test_ranks_that_wait_for_ever_are_named() -> None:
    with pytest.raises(CannotReplay, match=r"ranks \[0\] wait for calls"):
        replay([[start(0), wait(0)], []], SLOW)


def test_bytes_are_hidden_where_something_is_multiplied_before_the_wait() -> None:
    acts = [start(0), compute(1), wait(0), start(1), wait(1), compute(1), start(2), compute(1)]
    assert hidden_bytes(acts) == 8


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        ("aten::mm", [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("aten::addmm", [(5,), (3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("aten::bmm", [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("aten::_scaled_dot_product_attention", [(2, 3, 7, 4)] * 3, 4 * 2 * 3 * 7 * 7 * 4),
        ("aten::mv", [(3, 4), (4,)], 24),
        ("aten::dot", [(4,), (4,)], 8),
        ("aten::addmv", [(3,), (3, 4), (4,)], 24),
        ("aten::convolution", [(2, 3, 10), (5, 3, 4), (5,)], 2 * 2 * 10 * 5 * 3 * 4),
        ("aten::addmm_", [(3, 5), (3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("aten::addbmm", [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("aten::addr_", [(3, 5), (3,), (5,)], 2 * 3 * 5),
        ("aten::linear", [(3, 4), (5, 4)], 2 * 3 * 4 * 5),
        ("aten::_cdist_forward", [(3, 4), (5, 4)], 2 * 3 * 4 * 5),
        ("aten::linalg_inv_ex", [(4, 4)], 2 * 4 * 4 * 4),
        ("aten::_trilinear", [(3, 4), (5, 4, 4)], 2 * 3 * 5 * 4 * 4),
        ("aten::__and__", [(3, 4), (3, 4)], 0),
        ("aten::add", [(3, 4), (3, 4)], 0),
    ],
)
def test_flops_of_an_operation(name: str, shapes: list[tuple[int, ...]], flops: int) -> None:
    assert flops_of(name, [torch.empty(shape) for shape in shapes]) == flops


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
def test_flops_of_tensors_of_other_kinds() -> None:
    rows = torch.tensor([[1.0, 0, 0], [0, 0, 2]])
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for first in (rows.to_sparse(), rows.to_sparse_csr()):
        assert flops_of("aten::mm", [first, torch.ones(3, 5)]) == 2 * 2 * 5  # two of six elements are there
    assert flops_of("aten::linear", [nested, torch.ones(5, 3)]) == 2 * 6 * 3 * 5


def journals(submission: Submission, name: str, times: int, group: dist.ProcessGroup) -> list[list[Act]]:
    """What this rank does in the run that the check measures, in each of some runs."""
    case = fast_case("measured", "measured", RANKS, seed=1)
    recorder, program = current_recorder(), getattr(submission.load(), name)
    assert recorder is not None
    found = []
    for _ in range(times):
        model = model_of(case)
        ids = torch.randint(64, (2, 2, 16, 25), generator=torch.Generator().manual_seed(0))
        with Journal(recorder) as journal:
            program(model, list(ids), group, USUAL_RATE)
        found.append(journal.acts)
    return found


def waits(group: dist.ProcessGroup) -> list[list[str]]:
    """What is written down of a call that is waited for in each of these ways, then used, then waited for."""

    def asked(work: dist.Work) -> None:
        while not work.is_completed():
            time.sleep(0.001)

    recorder, found = current_recorder(), []
    assert recorder is not None
    for wait in (lambda work: work.wait(), asked, lambda work: work.get_future().wait()):
        with Journal(recorder) as journal:
            total = torch.ones(4)
            work = dist.all_reduce(total, group=group, async_op=True)
            assert work is not None
            wait(work)
            total @ total
            work.wait()
        found.append([act.kind for act in journal.acts])
    return found


def test_who_asks_whether_a_call_is_over_has_waited_for_it() -> None:
    for of_rank in labkit.launch(waits, ranks=2, backend="gloo", timeout=60).results:
        assert of_rank == [["compute", "start", "wait", "compute"]] * 3


def milliseconds(name: str, times: int = 1) -> list[float]:
    """Of a step, replayed, of as many runs."""
    submission = collect(list(reference_cells("10")), "10.make-it-fast", [name])
    job = labkit.launch(journals, submission, name, times, ranks=RANKS, backend="gloo", timeout=150)
    runs = zip(*job.results, strict=True)
    return [max(span.end for span in replay(run).timeline) * 1e3 / 2 for run in runs]


@pytest.mark.days
def test_the_plain_program_takes_what_others_are_held_against() -> None:
    assert milliseconds("plain_train") == pytest.approx([PLAIN_SECONDS * 1e3], rel=0.02)


def spin(stop: multiprocessing.synchronize.Event) -> None:
    while not stop.is_set():
        sum(range(10_000))


@pytest.mark.days(6)
def test_a_score_is_the_same_in_every_run_under_load() -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    busy = [context.Process(target=spin, args=(stop,), daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    try:
        scores = milliseconds("train", times=10) + milliseconds("train", times=10)
        assert len(set(scores)) == 1
    finally:
        stop.set()
        for process in busy:
            process.join()


def test_a_call_that_no_journal_sees_is_told() -> None:
    seen = {"op": "all_reduce", "num_bytes": 8, "group": [0, 1], "start": 1.0, "end": 2.0, "source": "python"}
    unseen = {**seen, "start": 3.0, "end": None, "source": "native"}
    begun = msgspec.to_builtins([start(0, num_bytes=8)])
    evidence = Evidence(Case("a case", 2), {}, [])

    def finding(calls: list[dict[str, Any]], acts: list[Any]) -> Finding:
        return all_from_python(evidence, RankAnswer(0, {}, {"acts": acts}, {"training": calls}, {}))

    assert finding([seen], begun).passed
    by_another_way, behind_its_back = finding([seen, unseen], begun), finding([seen], [])
    assert not by_another_way.passed
    assert not behind_its_back.passed
    assert by_another_way.seen == "all_reduce of 8 bytes by functional collectives, 0 calls by other ways"
    assert behind_its_back.seen == "no communication by functional collectives, 1 calls by other ways"
