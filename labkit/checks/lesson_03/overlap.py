"""What `03.overlapped-data-parallel` must show: gradients that are averaged while backward still runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_03.buckets import BUCKETS_ID
from labkit.checks.lesson_03.handles import asked_handles, waits_for_all
from labkit.checks.lesson_03.interrupts import Interrupted, interrupted_at
from labkit.checks.lesson_03.left_over import leaves_nothing_over, measured_net, send_grown, some_loss
from labkit.checks.lesson_03.net import (
    GRADIENTS,
    MICRO_BATCHES,
    PAIRS,
    TORCHS_OWN,
    Loss,
    Net,
    ReplicaEvidence,
    add_earlier_gradients,
    any_layout,
    equals,
    hand_own,
    leaves_frozen_alone,
    lie_differently,
    loss_of,
    net_case,
    net_inputs,
    net_of,
    own_loss,
    send_gradients,
    send_gradients_and_step,
    send_state,
    stand_anywhere,
    subgroup,
    trained,
)
from labkit.checks.lesson_03.overlap_judges import (
    PATIENCE,
    TIMED,
    forwards_of,
    one_a_bucket,
    sends_gradients,
    starts_early,
    starts_early_and_waits_late,
)
from labkit.checks.lesson_03.replicas import BROADCAST_ID
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, calls_of, calls_text, stays_in_group
from labkit.checks.shared.places import enter_group
from labkit.torch_private_distributed import job_store

OVERLAP_ID = "03.overlapped-data-parallel"
LONGEST = 30.0  # seconds that a rank may be behind another


def _cases(seed: int) -> list[Case]:
    large = {"rows": 64, "width": 24, "inner": 40, "bucket_bytes": 9000}
    small = {"aside": [2], "bucket_bytes": 60}
    there = {"zeroed": True, "earlier": True, "evaluated": True}
    everything = [name for name, _ in Net(1, 1).named_parameters()]
    return [
        net_case("two ranks", "values", 2, seed, late=[1], more=8),
        net_case("two ranks, timed", "many", 2, seed, **large),
        net_case("two ranks, large layers", "values", 2, seed, **large),
        net_case("the second bucket complete before the first", "values", 2, seed, turned=True, **large),
        net_case("four ranks, gradients zeroed", "values", 4, seed, bucket_bytes=1, **there),
        net_case("two dtypes", "values", 2, seed, mixed=True),
        net_case("two forwards, then two backwards", "values", 2, seed, ahead=True),
        net_case("accumulating", "no-sync", 2, seed),
        net_case("accumulating, a layer not used in the end", "no-sync", 2, seed, aside_in=2),
        net_case("a layer one rank does not use", "unused", 2, seed, aside=[1], earlier=True),
        net_case("different ranks, small buckets", "unused", 4, seed, **small),
        net_case("a frozen layer", "unused", 2, seed, frozen=["second.weight", "last.bias"]),
        net_case("all layers frozen", "unused", 2, seed, frozen=everything, silent=True),
        net_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        net_case("one rank", "values", 1, seed),
        net_case("a parameter with two names", "values", 2, seed, tied=True, bucket_bytes=100),
        net_case("views on one rank", "layout", 2, seed, views_on=[1], aside=[0]),
    ]


# -- on a rank


def _wrap(rank: Rank, net: Net) -> Any:
    """The student's wrapper of a net. Answers: start.NAME. Recording: built."""
    group = enter_group(rank)
    with rank.recording("built"):
        model = rank.student.OverlappedDataParallel(net, group, rank.params["bucket_bytes"])
    send_state(rank, net, "start")
    return model


def _train(rank: Rank) -> None:
    """Answers: start.NAME, grad STEP.NAME, trained.NAME. Recordings: built, forward STEP, and of each
    backward, with the facts of `_Arrivals`, step STEP.NUMBER. Facts, where the case has `more`: those of
    `send_grown`.
    """
    net = net_of(rank.case, rank.inputs)
    stand_anywhere(rank, net)
    lie_differently(rank, net)
    add_earlier_gradients(rank.case, net)
    arrivals = _Arrivals(net)
    model = _wrap(rank, net)
    model.train(net.training)
    if rank.case.kind == "subgroup":  # a model of another group, made later, changes nothing
        rank.student.OverlappedDataParallel(net_of(rank.case, rank.inputs), rank.group)
    for step in range(STEPS):
        with rank.recording(f"forward {step}"):
            losses = [own_loss(rank, model, step, m) for m in range(forwards_of(rank.case))]
        for m, loss in enumerate(losses):
            with arrivals.recording(rank, f"step {step}.{m}"):
                loss.backward()
        send_gradients_and_step(rank, net, step)
    send_state(rank, net, "trained")
    if rank.params.get("silent"):
        with model.no_sync():
            own_loss(rank, model, 0).backward()
    if "more" in rank.params:
        _train_on(rank)


def _train_on(rank: Rank) -> None:
    """The facts of `send_grown`, of a model of all ranks."""
    net = measured_net()
    model = rank.student.OverlappedDataParallel(net, rank.group, rank.params["bucket_bytes"])
    send_grown(rank, net, lambda: some_loss(model).backward())


class _Arrivals:
    """Sees when each gradient of a net is there, and when backward comes to its first layer. Made before the
    wrapper, whose own hooks may start to send.
    """

    def __init__(self, net: Net) -> None:
        self.ready: list[tuple[int, float]] = []
        self._first: list[float] = []
        net.first.register_forward_hook(lambda _, __, out: self._watch(out))
        for number, parameter in enumerate(net.parameters()):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._note, number))

    @contextlib.contextmanager
    def recording(self, rank: Rank, name: str) -> Iterator[None]:
        """A recording of one backward. Facts, in seconds from the recording's zero: ready NAME, the number of
        each parameter whose gradient came and when that was; first NAME, when backward came to the first
        layer.
        """
        self.ready.clear()
        self._first.clear()
        with rank.recording(name) as begin:
            yield
        rank.fact(f"ready {name}", [[number, moment - begin] for number, moment in self.ready])
        rank.fact(f"first {name}", [moment - begin for moment in self._first])

    def _note(self, number: int, _: Tensor) -> None:
        self.ready.append((number, time.monotonic()))

    def _watch(self, out: Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda _: self._first.append(time.monotonic()))


def _time_backward(rank: Rank) -> None:
    """Three forward and backward passes with the weights of the start, one inside no_sync before the last.
    Answers: start.NAME, and of the two before no_sync, which another property is about, grad STEP.NAME, once
    all messages are over. Recordings: forward STEP, step STEP. Facts: those of `_Arrivals`; asked step STEP,
    of how many handles; stalled, whether rank 0 was still without its last gradient when the others began the
    last one, `PATIENCE` after it.
    """
    net = net_of(rank.case, rank.inputs)
    arrivals = _Arrivals(net)
    model = _wrap(rank, net)
    model.train(net.training)
    for step in range(TIMED):
        if step == STEPS:
            with model.no_sync():
                own_loss(rank, model, 0).backward()
        with rank.recording(f"forward {step}"):
            loss = own_loss(rank, model, min(step, 1))
        if step == TIMED - 1:
            rank.fact("stalled", _begin_later(rank, net, arrivals))
        name = f"step {step}"
        with asked_handles(rank, name), arrivals.recording(rank, name):
            loss.backward()  # timed from the recording's zero: of two, a pause would be overlap
        if step < STEPS:
            dist.barrier(rank.group)  # of who waits for nothing, what is sent counts, and not when it came
            send_gradients(rank, net, step)
            net.zero_grad()


def _begin_later(rank: Rank, net: Net, arrivals: _Arrivals) -> bool:
    """On rank 0: tell the others when it begins, and when all gradients are there. On the others: wait for
    that, and say whether it did not come. Who waits for a message in backward, in whatever way, waits for
    them as well.
    """
    name = f"labkit: gradients of {rank.group.group_name}"
    begun = f"{name}, from now on"
    if rank.rank:
        try:
            job_store().wait([begun], timedelta(seconds=LONGEST))
            job_store().wait([name], timedelta(seconds=PATIENCE))
        except dist.DistStoreError:  # the time is over
            return True
        return False
    parameters = trained(net)
    for parameter in parameters:  # of hooks on one tensor, those before it have had their time
        parameter.register_hook(
            lambda _: job_store().set(name, "") if len(arrivals.ready) == len(parameters) - 1 else None
        )
    job_store().set(begun, "")
    return False


def _accumulate(rank: Rank) -> None:
    """Backward passes inside no_sync, the first in another no_sync within, and one outside; the first and the
    last have their forward on the other side. An interrupt leaves a second one within. Then one inside one
    that was made before, and two normal backward passes that add up: one through another model too, one while
    that is silent. Before all that, gradients of all layers come inside no_sync, and then again in a backward
    that an interrupt ends, and the wrapper's zero_grad clears them.

    Answers: start.NAME, grad STEP.NAME. Recordings: built, forward NUMBER of those outside, inside, and of
    backward passes outside, with the facts of `_Arrivals`: outside, beside (while another model is silent).
    """
    net, another = net_of(rank.case, rank.inputs), net_of(rank.case, rank.inputs)
    arrivals = _Arrivals(net)
    model = _wrap(rank, net)
    with model.no_sync():
        _loss_through_all(rank, model).backward()
    with contextlib.suppress(Interrupted), model.no_sync():
        interrupted_at(net.first.bias, _loss_through_all(rank, model))
    model.zero_grad()
    with rank.recording("forward 0"):
        loss = own_loss(rank, model, 0, 0)
    with rank.recording("inside"), model.no_sync():
        with model.no_sync():
            loss.backward()
        with contextlib.suppress(Interrupted), model.no_sync():
            raise Interrupted
        for m in range(1, MICRO_BATCHES - 1):
            own_loss(rank, model, 0, m).backward()
        loss = own_loss(rank, model, 0, MICRO_BATCHES - 1)
    silence = model.no_sync()  # begins when it is entered
    with arrivals.recording(rank, "outside"):
        loss.backward()
    send_gradients_and_step(rank, net, 0)
    with contextlib.suppress(Interrupted), silence:
        raise Interrupted
    other = rank.student.OverlappedDataParallel(another, rank.group)
    with rank.recording("forward 1"):
        loss = own_loss(rank, model, 1, 0) + own_loss(rank, other, 1, 0)
    loss.backward()
    with other.no_sync():
        with rank.recording("forward 2"):
            loss = own_loss(rank, model, 1, 1)
        with arrivals.recording(rank, "beside"):
            loss.backward()
    send_gradients_and_step(rank, net, 1)


def _loss_through_all(rank: Rank, model: nn.Module) -> Tensor:
    """A loss in which every layer has a part, whatever the case leaves out."""
    return F.mse_loss(model(rank.inputs["x"][1, 0]), rank.inputs["target"][1, 0])


# -- in the judge


def _loss_of_a_step(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The sum over the micro-batches of a step."""
    return torch.stack([loss_of(model, case, handed, rank, step, m) for m in range(forwards_of(case))]).sum()


def _accumulated_loss(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The sum over the micro-batches of the first step; two micro-batches in the second."""
    count = MICRO_BATCHES if step == 0 else 2
    return torch.stack([loss_of(model, case, handed, rank, step, m) for m in range(count)]).sum()


def _run(on_rank: Callable[[Rank], None], loss: Loss = loss_of, learns: bool = True) -> Run:
    return Run(on_rank, net_inputs, hand_own, partial(ReplicaEvidence, loss=loss, learns=learns))


def _is_silent_inside(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        inside, outside = calls_of(answer, "inside"), calls_of(answer, "outside")
        yield Finding(not inside, "no communication inside no_sync", calls_text(inside), answer.rank)
        if evidence.case.ranks > 1:  # who is alone has nobody to send to
            yield Finding(bool(outside), "an all_reduce in the backward after it", "none", answer.rank)


BESIDES = ("values", "no-sync", "unused", "subgroup", "layout")  # what is sent, and when, is the same there
EXERCISE = Exercise(
    OVERLAP_ID,
    "Communication during backward",
    ("OverlappedDataParallel",),
    {
        "values": _run(_train, _loss_of_a_step),
        "many": _run(_time_backward, learns=False),
        "no-sync": _run(_accumulate, _accumulated_loss),
        "unused": _run(_train),
        "subgroup": _run(_train),
        "layout": _run(_train),
    },
    _cases,
    (
        Property(
            "replicas",
            "numbers",
            1,
            "At the start every rank has the first rank's parameters and buffers",
            "broadcast_module is not called when the wrapper is made, or not in the wrapper's group",
            on={"values": equals("start")},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "After backward every gradient is the mean over the ranks",
            "a handle was not waited for, or a flat bucket was cut at the wrong offsets",
            {
                "values": GRADIENTS,
                "many": every(GRADIENTS, *(waits_for_all(f"step {step}") for step in range(TIMED))),
            },
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            "Two steps of SGD are those of one process with all rows, and steps leave nothing behind",
            "counters of ready gradients are not reset for the second backward, or handles are kept for ever",
            {"values": every(equals("trained"), leaves_nothing_over)},
        ),
        Property(
            "all-reduces",
            "mechanism",
            3,
            "One all_reduce a bucket; the gradients' bytes once",
            "bucket_bytes taken as a number of elements, or one all_reduce a parameter",
            {"many": every(one_a_bucket, sends_gradients)},
            dict.fromkeys(BESIDES, one_a_bucket),
        ),
        Property(
            "overlap",
            "mechanism",
            11,
            "Most bytes are under way before the last gradient is ready, and waited for at the end",
            "all is reduced after backward, or when all of it is computed; async_op=True is missing, or a"
            " handle is asked until its call is over",
            {"many": every(starts_early_and_waits_late, sends_gradients)},
            dict.fromkeys(BESIDES, starts_early),
        ),
        Property(
            "no-sync",
            "robustness",
            1,
            "Inside no_sync nothing is sent, and an exception in it changes nothing for later",
            "use try/finally to put back what was before, and reset the ready counters",
            {"no-sync": every(_is_silent_inside, GRADIENTS)},
        ),
        Property(
            "unused-parameter",
            "robustness",
            1,
            "A parameter that some ranks do not use neither hangs nor falsifies",
            "buckets go in the same order on every rank, those that never fill at the end of backward;"
            " an unused parameter sends the gradient that is there, zeros where there is none",
            {"unused": every(equals("start", "trained"), GRADIENTS, leaves_frozen_alone)},
        ),
        subgroup(every(equals("start", "trained"), GRADIENTS, stays_in_group)),
        any_layout(every(equals("start", "trained"), GRADIENTS)),
    ),
    builds_on=(BROADCAST_ID, BUCKETS_ID),
    forbids=TORCHS_OWN,
)
