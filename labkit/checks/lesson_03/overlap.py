"""What `03.overlapped-data-parallel` must show: gradients that are averaged while backward still runs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_03.buckets import BUCKETS_ID
from labkit.checks.lesson_03.handles import asked_handles, waits_for_all
from labkit.checks.lesson_03.net import (
    GRADIENTS,
    MICRO_BATCHES,
    PAIRS,
    TORCHS_OWN,
    WORDS,
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
from labkit.checks.lesson_03.replicas import BROADCAST_ID
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import (
    STEPS,
    State,
    calls_of,
    calls_text,
    nbytes,
    same,
    stays_in_group,
)
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import enter_group
from labkit.torch_private import job_store

OVERLAP_ID = "03.overlapped-data-parallel"
TIMED = STEPS + 1  # backward passes
PATIENCE = 2.0  # seconds; a backward pass takes thousandths
SMALLEST_MULTIPLE = 1e-3  # of the mean: less is nothing


def _cases(seed: int) -> list[Case]:
    large = {"rows": 64, "width": 24, "inner": 40, "bucket_bytes": 9000}
    small = {"aside": [2], "bucket_bytes": 60}
    there = {"zeroed": True, "earlier": True, "evaluated": True}
    everything = [name for name, _ in Net(1, 1).named_parameters()]
    return [
        net_case("two ranks", "values", 2, seed, late=[1]),
        net_case("two ranks, timed", "many", 2, seed, **large),
        net_case("two ranks, large layers", "values", 2, seed, **large),
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
    """Answers: start.NAME, grad STEP.NAME, trained.NAME. Recordings: built, step STEP."""
    net = net_of(rank.case, rank.inputs)
    stand_anywhere(rank, net)
    lie_differently(rank, net)
    add_earlier_gradients(rank.case, net)
    model = _wrap(rank, net)
    model.train(net.training)
    if rank.case.kind == "subgroup":  # a model of another group, made later, changes nothing
        rank.student.OverlappedDataParallel(net_of(rank.case, rank.inputs), rank.group)
    for step in range(STEPS):
        losses = [own_loss(rank, model, step, m) for m in range(_forwards(rank.case))]
        with rank.recording(f"step {step}"):
            for loss in losses:
                loss.backward()
        send_gradients_and_step(rank, net, step)
    send_state(rank, net, "trained")
    if rank.params.get("silent"):
        with model.no_sync():
            own_loss(rank, model, 0).backward()


def _forwards(case: Case) -> int:
    """How many forward passes of a step come before its first backward."""
    return 2 if case.params.get("ahead") else 1


def _time_backward(rank: Rank) -> None:
    """Three forward and backward passes with the weights of the start, one inside no_sync before the last.
    Answers: start.NAME, and of the two before no_sync, which another property is about, grad STEP.NAME, once
    all messages are over. Recordings: forward, step STEP. Facts: ready STEP, the second at which each
    gradient was; first STEP, those at which backward came to the first layer; asked STEP, of how many
    handles; stalled, whether rank 0 was still without its last gradient when the others began the last one,
    `PATIENCE` after it.
    """
    net = net_of(rank.case, rank.inputs)
    ready: list[float] = []
    first: list[float] = []
    net.first.register_forward_hook(lambda _, __, out: _note_gradient(out, first))
    for parameter in net.parameters():  # before the wrapper's own hooks, which may start to send
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.monotonic()))
    model = _wrap(rank, net)
    with rank.recording("forward"):
        loss = own_loss(rank, model, 0)
    for step in range(TIMED):
        ready.clear()
        first.clear()
        if step == TIMED - 1:
            rank.fact("stalled", _begin_later(rank, net, ready))
        with asked_handles(rank, f"step {step}"), rank.recording(f"step {step}") as begin:
            loss.backward()  # timed from the recording's zero: of two, a pause would be overlap
        rank.fact(f"ready {step}", [moment - begin for moment in ready])
        rank.fact(f"first {step}", [moment - begin for moment in first])
        if step < STEPS:
            dist.barrier(rank.group)  # of who waits for nothing, what is sent counts, and not when it came
            send_gradients(rank, net, step)
            net.zero_grad()
        if step == STEPS - 1:
            with model.no_sync():
                own_loss(rank, model, 0).backward()
        loss = own_loss(rank, model, 1)


def _begin_later(rank: Rank, net: Net, ready: list[float]) -> bool:
    """On rank 0: tell the others when all gradients are `ready`. On the others: wait for that, and say
    whether it did not come. Who waits for a message in backward, in whatever way, waits for them as well.
    """
    name = f"labkit: gradients of {rank.group.group_name}"
    if rank.rank:
        try:
            job_store().wait([name], timedelta(seconds=PATIENCE))
        except dist.DistStoreError:  # the time is over
            return True
        return False
    enough = sum(parameter.requires_grad for parameter in net.parameters())
    for parameter in net.parameters():  # of hooks on one tensor, those before it have had their time
        parameter.register_hook(lambda _: job_store().set(name, "") if len(ready) == enough - 1 else None)
    return False


def _note_gradient(out: Tensor, moments: list[float]) -> None:
    """Note when its gradient is there."""
    if out.requires_grad:
        out.register_hook(lambda _: moments.append(time.monotonic()))


class _Interrupted(KeyboardInterrupt):
    """Raised by the check inside no_sync: no subclass of Exception, as when a notebook's cell is stopped."""


def _accumulate(rank: Rank) -> None:
    """Backward passes inside no_sync, the first in another no_sync within, and one outside; the first and the
    last have their forward on the other side. An interrupt leaves a second one within. Then one inside one
    that was made before, and two normal backward passes that add up: one through another model too, one while
    that is silent. Before all that, gradients of all layers come inside no_sync, and the wrapper's zero_grad
    clears them.

    Answers: start.NAME, grad STEP.NAME. Recordings: built, inside, outside.
    """
    net, another = net_of(rank.case, rank.inputs), net_of(rank.case, rank.inputs)
    model = _wrap(rank, net)
    with model.no_sync():
        _loss_through_all(rank, model).backward()
    model.zero_grad()
    loss = own_loss(rank, model, 0, 0)
    with rank.recording("inside"), model.no_sync():
        with model.no_sync():
            loss.backward()
        with contextlib.suppress(_Interrupted), model.no_sync():
            raise _Interrupted
        for m in range(1, MICRO_BATCHES - 1):
            own_loss(rank, model, 0, m).backward()
        loss = own_loss(rank, model, 0, MICRO_BATCHES - 1)
    silence = model.no_sync()  # begins when it is entered
    with rank.recording("outside"):
        loss.backward()
    send_gradients_and_step(rank, net, 0)
    with contextlib.suppress(_Interrupted), silence:
        raise _Interrupted
    other = rank.student.OverlappedDataParallel(another, rank.group)
    (own_loss(rank, model, 1, 0) + own_loss(rank, other, 1, 0)).backward()
    with other.no_sync():
        own_loss(rank, model, 1, 1).backward()
    send_gradients_and_step(rank, net, 1)


def _loss_through_all(rank: Rank, model: nn.Module) -> Tensor:
    """A loss in which every layer has a part, whatever the case leaves out."""
    return F.mse_loss(model(rank.inputs["x"][1, 0]), rank.inputs["target"][1, 0])


# -- in the judge


def _loss_of_a_step(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The sum over the micro-batches of a step."""
    return torch.stack([loss_of(model, case, handed, rank, step, m) for m in range(_forwards(case))]).sum()


def _accumulated_loss(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The sum over the micro-batches of the first step; two micro-batches in the second."""
    count = MICRO_BATCHES if step == 0 else 2
    return torch.stack([loss_of(model, case, handed, rank, step, m) for m in range(count)]).sum()


def _run(on_rank: Callable[[Rank], None], loss: Loss = loss_of, learns: bool = True) -> Run:
    return Run(on_rank, net_inputs, hand_own, partial(ReplicaEvidence, loss=loss, learns=learns))


def _sends_gradients(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """What the timed backward passes left is the mean over the ranks, or one multiple of it: a division that
    is missing or wrong changes nothing in what is sent, and when.
    """
    for answer in evidence.answers:
        expected = {n: t for n, t in evidence.reference(answer).items() if n.startswith("grad ")}
        times = _multiple(expected, answer)
        for key, tensor in expected.items():
            kind, _, name = key.partition(".")
            told = f"{WORDS[kind].format(name)}, or one multiple of that for all"
            yield same(told, tensor * times, answer, key)


def _multiple(expected: State, answer: RankAnswer) -> float:
    """What all gradients of an answer were multiplied by, where it is one number above 0; 1 elsewhere."""
    there = [(t.flatten(), answer.tensors[n].flatten()) for n, t in expected.items() if n in answer.tensors]
    pairs = [(a, b.to(a.dtype)) for a, b in there if a.shape == b.shape]
    whole = sum(float(a @ a) for a, _ in pairs)
    times = sum(float(a @ b) for a, b in pairs) / whole if whole else 1.0
    return times if SMALLEST_MULTIPLE <= times < math.inf else 1.0


def _one_a_bucket(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """Count and bytes of the all_reduces of one backward pass."""
    for answer in in_company(evidence):
        calls, bucket_bytes = calls_of(answer, "step 0"), evidence.case.params["bucket_bytes"]
        sizes = [nbytes(parameter) for parameter in trained(evidence.first_net(answer))]
        seen, filled = calls_text(calls), filled_buckets(sizes, bucket_bytes)
        right = [op for op, _ in calls] == ["all_reduce"] * len(filled)
        yield Finding(right, f"{len(filled)} all_reduces, one a bucket", seen, answer.rank)
        yield _moves_once(evidence, answer)
        yield Finding(
            not calls_of(answer, "forward"),
            "no communication in forward",
            calls_text(calls_of(answer, "forward")),
            answer.rank,
        )
        largest = max([bucket_bytes, *sizes])
        right = all(size <= largest for _, size in calls)
        yield Finding(right, f"no bucket above {largest:,} bytes", seen, answer.rank)
        moved = [size for _, size in calls]
        told = f"buckets filled from the last parameter to the first, so of {_bytes_text(filled)}"
        yield Finding(moved == filled, told, f"of {_bytes_text(moved)}", answer.rank)


def _moves_once(evidence: ReplicaEvidence, answer: RankAnswer) -> Finding:
    """Whether backward reduces the gradients' bytes: what is sent beside them for show is more."""
    calls = calls_of(answer, "step 0")
    whole, moved = sum(map(nbytes, trained(evidence.first_net(answer)))), sum(size for _, size in calls)
    told = f"the gradients' {whole:,} bytes, once"
    return Finding(moved == whole, told, f"{moved:,} bytes: {calls_text(calls)}", answer.rank)


def filled_buckets(sizes: list[int], bucket_bytes: int) -> list[int]:
    """The bytes of the buckets, in order, that hold parameters of these bytes in reverse order when each is
    filled as far as it goes.
    """
    found: list[int] = []
    for size in reversed(sizes):
        if found and found[-1] + size <= bucket_bytes:
            found[-1] += size
        else:
            found.append(size)
    return found


def _bytes_text(sizes: list[int]) -> str:
    """Sizes in their order: 16, then 1,024 bytes."""
    return f"{', then '.join(f'{size:,}' for size in sizes) or 'no'} bytes"


def _starts_early_and_waits_late(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        yield _moves_once(evidence, answer)
        for step in range(TIMED):
            yield from _times(answer, step)
        told = "backward goes on to the last gradient while another rank has sent nothing yet"
        seen = f"it stood still until that rank began, {PATIENCE} s later"
        yield Finding(not answer.facts["stalled"], told, seen, 0)


def _times(answer: RankAnswer, step: int) -> Iterator[Finding]:
    ready = answer.facts[f"ready {step}"]
    calls = [call for call in answer.collectives[f"step {step}"] if call["op"] == "all_reduce"]
    if not calls or not ready:
        yield Finding(False, "an all_reduce that starts during backward", "none", answer.rank)
        return
    whole, last = sum(call["num_bytes"] for call in calls), ready[-1]
    early = sum(call["num_bytes"] for call in calls if call["start"] < last)
    told = f"half of the {whole:,} bytes under way before the last gradient is ready"
    begun = f"the first all_reduce after {calls[0]['start'] * 1e3:.2f} ms"
    gap = f"{early:,} bytes; {begun}, last gradient after {last * 1e3:.2f} ms"
    yield Finding(2 * early >= whole, told, gap, answer.rank)
    first = min(answer.facts[f"first {step}"], default=last)
    told = "an all_reduce starts before backward comes to the first layer"
    seen = f"{begun}, backward there after {first * 1e3:.2f} ms"
    yield Finding(calls[0]["start"] < first, told, seen, answer.rank)
    waited = [call for call in calls if call["end"] is not None and call["end"] < last]
    told = "nothing is waited for before the last gradient is ready"
    yield Finding(not waited, told, f"{len(waited)} all_reduces were waited for", answer.rank)


def _is_silent_inside(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        inside, outside = calls_of(answer, "inside"), calls_of(answer, "outside")
        yield Finding(not inside, "no communication inside no_sync", calls_text(inside), answer.rank)
        if evidence.case.ranks > 1:  # who is alone has nobody to send to
            yield Finding(bool(outside), "an all_reduce in the backward after it", "none", answer.rank)


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
            "Two steps of SGD are those of one process with all rows",
            "counters of ready gradients are not reset for the second backward",
            {"values": equals("trained")},
        ),
        Property(
            "all-reduces",
            "mechanism",
            3,
            "One all_reduce a bucket; the gradients' bytes once",
            "bucket_bytes taken as a number of elements, or one all_reduce a parameter",
            {"many": every(_one_a_bucket, _sends_gradients)},
            dict.fromkeys(("layout", "subgroup"), _one_a_bucket),
        ),
        Property(
            "overlap",
            "mechanism",
            11,
            "Most bytes are under way before the last gradient is ready, and waited for at the end",
            "all is reduced after backward, or when all of it is computed; async_op=True is missing, or a"
            " handle is asked until its call is over",
            {"many": every(_starts_early_and_waits_late, _sends_gradients)},
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
