"""The checks of `OverlappedDataParallel` and of `accumulate_gradients`, which builds on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.lesson_03.evidence import describe, groups_used, tensors_match
from labkit.checks.lesson_03.net import (
    MICRO_BATCHES,
    STEPS,
    first_net,
    loss_of,
    own_net,
    place_of,
    reference_gradients,
    send_gradients,
    send_state,
    step_plainly,
)
from labkit.checks.lesson_03.replicas import trained_reference
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group


class _Interrupted(Exception):
    """Raised by the check inside no_sync."""


def overlap_on_rank(rank: Rank) -> None:
    """Train through the student's wrapper, in the way the case asks for."""
    group = enter_group(rank)
    net = own_net(rank.case, rank.inputs, rank.rank)
    ready: list[float] = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.monotonic()))
    with rank.recording("built"):
        model = rank.student.OverlappedDataParallel(net, group, rank.params["bucket_bytes"])
    send_state(rank, net, "start")
    {"no-sync": _accumulate, "many": _time_backward}.get(rank.params["kind"], _train)(rank, model, net, ready)


def _train(rank: Rank, model: Any, net: nn.Module, ready: list[float]) -> None:
    for step in range(STEPS):
        loss = loss_of(model, rank.case, rank.inputs, step, rank.rank)
        with rank.recording(f"step {step}"):
            loss.backward()
        send_gradients(rank, net, f"grad {step}")
        step_plainly(net)
    send_state(rank, net, "trained")


def _time_backward(rank: Rank, model: Any, net: nn.Module, ready: list[float]) -> None:
    loss = loss_of(model, rank.case, rank.inputs, 0, rank.rank)
    ready.clear()
    with rank.recording("step 0") as begin:  # of two zeros, a pause between them would be overlap
        loss.backward()
    rank.fact("ready", [moment - begin for moment in ready])


def _accumulate(rank: Rank, model: Any, net: nn.Module, ready: list[float]) -> None:
    """Two backward passes inside no_sync and one outside; then an exception inside it and a normal step."""
    with rank.recording("inside"), model.no_sync():
        for m in range(MICRO_BATCHES - 1):
            loss_of(model, rank.case, rank.inputs, 0, rank.rank, m).backward()
    with rank.recording("outside"):
        loss_of(model, rank.case, rank.inputs, 0, rank.rank, MICRO_BATCHES - 1).backward()
    send_gradients(rank, net, "grad 0")
    step_plainly(net)
    with contextlib.suppress(_Interrupted), model.no_sync():
        raise _Interrupted
    loss_of(model, rank.case, rank.inputs, 1, rank.rank).backward()
    send_gradients(rank, net, "grad 1")


def judge_overlap(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    kind = case.params["kind"]
    for answer in answers:
        if kind == "many":
            yield from _overlaps(case, inputs, answer)
        elif kind == "no-sync":
            yield from _accumulated(case, inputs, answer)
        else:
            yield from _trained(
                case, inputs, answer, {"subgroup": "subgroup", "unused": "unused-parameter"}.get(kind)
            )


def _trained(case: Case, inputs: Inputs, answer: RankAnswer, special: str | None) -> Iterator[Finding]:
    place = place_of(case, answer.rank)
    start = first_net(case, inputs, answer.rank).state_dict()
    gradients, trained = trained_reference(case, inputs, answer.rank)
    yield from tensors_match(special or "replicas", answer, "start", start, "of the group's first rank")
    for step in range(STEPS):
        told = f"of step {step + 1}, averaged over the group"
        yield from tensors_match(special or "gradients", answer, f"grad {step}", gradients[step], told)
    yield from tensors_match(special or "trained-weights", answer, "trained", trained, "after two steps")
    if special == "subgroup":
        yield from groups_used("subgroup", answer, place.members)


def _overlaps(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    """Count, bytes and times of the all-reduces of one backward pass."""
    net = first_net(case, inputs, answer.rank)
    sizes = {p.nbytes for p in net.parameters()}
    total, least = sum(p.nbytes for p in net.parameters()), fewest_buckets(net, case.params["bucket_bytes"])
    calls = [c for c in answer.collectives["step 0"] if c["op"] == "all_reduce"]
    seen = describe(answer.collectives["step 0"])
    moved = sum(c["num_bytes"] for c in answer.collectives["step 0"])
    fine = len(calls) == least == len(answer.collectives["step 0"])
    yield Finding("all-reduces", fine, f"{least} all_reduces, one a bucket", seen, answer.rank)
    told = f"the gradients' {total} bytes, once"
    yield Finding("all-reduces", moved == total, told, f"{moved} bytes: {seen}", answer.rank)
    largest = max([case.params["bucket_bytes"], *sizes])
    fine = all(c["num_bytes"] <= largest for c in calls)
    yield Finding("all-reduces", fine, f"no bucket above {largest} bytes", seen, answer.rank)
    yield from _times(answer, calls)


def _times(answer: RankAnswer, calls: Sequence[dict[str, float]]) -> Iterator[Finding]:
    ready = answer.facts["ready"]
    if not calls or not ready:
        yield Finding("overlap", False, "an all_reduce that starts during backward", "none", answer.rank)
        return
    early = calls[0]["start"] < ready[-1]
    first, last = calls[0]["start"] * 1e3, ready[-1] * 1e3
    gap = f"first all_reduce after {first:.2f} ms, last gradient after {last:.2f} ms"
    yield Finding(
        "overlap", early, "the first all_reduce starts before the last gradient is ready", gap, answer.rank
    )
    waited = [c for c in calls if c["end"] is not None and c["end"] < ready[-1]]
    told = "nothing is waited for before the last gradient is ready"
    yield Finding("overlap", not waited, told, f"{len(waited)} all_reduces were waited for", answer.rank)


def fewest_buckets(net: nn.Module, bucket_bytes: int) -> int:
    """How many buckets hold the parameters in reverse order when each is filled as far as it goes."""
    count, used = 0, bucket_bytes + 1
    for parameter in reversed(list(net.parameters())):
        if used + parameter.nbytes > bucket_bytes:
            count, used = count + 1, 0
        used += parameter.nbytes
    return count


def _accumulated(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    inside = answer.collectives["inside"]
    yield Finding("no-sync", not inside, "no communication inside no_sync", describe(inside), answer.rank)
    outside = answer.collectives["outside"]
    yield Finding("no-sync", bool(outside), "an all_reduce in the backward after it", "none", answer.rank)
    net = first_net(case, inputs, answer.rank)
    reference_gradients(net, case, inputs, 0, answer.rank, range(MICRO_BATCHES))
    gradients = _gradients(net)
    yield from tensors_match(
        "no-sync", answer, "grad 0", gradients, "summed over micro-batches, averaged over ranks"
    )
    step_plainly(net)
    reference_gradients(net, case, inputs, 1, answer.rank)
    yield from tensors_match(
        "no-sync", answer, "grad 1", _gradients(net), "after an exception inside no_sync"
    )


def _gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in net.named_parameters()}


# -- accumulate_gradients


def _sizes(case: Case) -> list[int]:
    """Rows of each micro-batch."""
    return case.params.get("sizes") or [case.params["rows"]] * MICRO_BATCHES


def _micro_batches(case: Case, inputs: Inputs, step: int, rank: int) -> list[tuple[Tensor, Tensor]]:
    pairs = zip(inputs["x"][step, rank], inputs["target"][step, rank], strict=True)
    return [(x[:size], target[:size]) for (x, target), size in zip(pairs, _sizes(case), strict=False)]


def accumulate_on_rank(rank: Rank) -> None:
    """Two training steps of several micro-batches each, through the (reference) data-parallel wrapper."""
    group = enter_group(rank)
    net = own_net(rank.case, rank.inputs, rank.rank)
    model = rank.student.OverlappedDataParallel(net, group, rank.params["bucket_bytes"])
    for step in range(STEPS):
        batches = _micro_batches(rank.case, rank.inputs, step, rank.rank)
        with rank.recording(f"step {step}"):
            loss = rank.student.accumulate_gradients(model, batches, F.mse_loss)
        rank.answer(f"loss {step}", torch.as_tensor(loss, dtype=torch.float64))
        send_gradients(rank, net, f"grad {step}")
        step_plainly(net)


def judge_accumulate(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    special = {"uneven": "uneven-micro-batches", "own-parts": "own-parts"}.get(case.params["kind"])
    for answer in answers:
        net = first_net(case, inputs, answer.rank)
        for step in range(STEPS):
            losses = {r: _whole_loss(net, case, inputs, step, r) for r in place_of(case, answer.rank).members}
            torch.stack(list(losses.values())).mean().backward()
            told = "as if the micro-batches were one batch"
            yield from tensors_match(special or "gradients", answer, f"grad {step}", _gradients(net), told)
            wrong = difference(losses[answer.rank].detach(), answer.tensors.get(f"loss {step}"))
            yield Finding(
                special or "loss", wrong is None, "the mean over this rank's rows", wrong or "", answer.rank
            )
            step_plainly(net)
        if special is None and place_of(case, answer.rank).size > 1:
            yield from _once(case, net, answer)


def _whole_loss(net: Any, case: Case, inputs: Inputs, step: int, rank: int) -> Tensor:
    batches = _micro_batches(case, inputs, step, rank)
    x, target = (torch.cat([pair[i] for pair in batches]) for i in (0, 1))
    return F.mse_loss(net(x), target)


def _once(case: Case, net: nn.Module, answer: RankAnswer) -> Iterator[Finding]:
    total = sum(p.nbytes for p in net.parameters())
    moved = sum(c["num_bytes"] for c in answer.collectives["step 0"])
    seen = f"{moved} bytes: {describe(answer.collectives['step 0'])}"
    told = f"the gradients' {total} bytes once, whatever the number of micro-batches"
    yield Finding("communication", moved == total, told, seen, answer.rank)
