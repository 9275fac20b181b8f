"""What `03.accumulate-gradients` must show: several micro-batches, as if they were one large batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_03.net import (
    GRADIENTS,
    MICRO_BATCHES,
    TORCHS_OWN,
    ReplicaEvidence,
    hand_own,
    net_case,
    net_inputs,
    net_of,
    send_gradients_and_step,
    trained,
)
from labkit.checks.lesson_03.overlap import OVERLAP_ID
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, calls_of, calls_text, nbytes, same
from labkit.checks.shared.places import enter_group


def _cases(seed: int) -> list[Case]:
    return [
        net_case("three micro-batches", "values", 2, seed),
        net_case("three micro-batches on four ranks", "values", 4, seed, rows=2),
        net_case("5, 2 and 3 rows", "uneven", 2, seed, sizes=[5, 2, 3]),
        net_case("one micro-batch", "uneven", 2, seed, sizes=[4], frozen=["last.bias"]),
        net_case("with your own wrapper", "own-parts", 2, seed),
    ]


def _micro_batches(case: Case, handed: Inputs, step: int) -> list[tuple[Tensor, Tensor]]:
    """Rows and targets, of the sizes that the case asks for."""
    x, target = handed["x"][step], handed["target"][step]
    return [(x[m, :size], target[m, :size]) for m, size in enumerate(_sizes(case))]


def _sizes(case: Case) -> list[int]:
    """The rows of each micro-batch."""
    return case.params.get("sizes") or [case.params["rows"]] * MICRO_BATCHES


def _mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """A mean over rows in which the two do not change places."""
    return F.mse_loss(torch.tanh(output), target)


def _accumulate(rank: Rank) -> None:
    """Steps of several micro-batches each, through the data-parallel wrapper.

    Answers: loss STEP, grad STEP.NAME. Facts: graph, whether a loss that was returned holds one; passes STEP,
    each forward and backward in order, and of how many rows. Recordings: plain, of a backward of one
    micro-batch; step STEP.
    """
    group, net = enter_group(rank), net_of(rank.case, rank.inputs)
    model = rank.student.OverlappedDataParallel(net, group, rank.params["bucket_bytes"])
    x, target = _micro_batches(rank.case, rank.inputs, 0)[0]
    loss = _mean_loss(model(x), target)
    with rank.recording("plain"):
        loss.backward()
    net.zero_grad()
    passes: list[list[str | int]] = []
    net.register_forward_hook(lambda _module, _arguments, output: _note_passes(output, passes))
    for step in range(STEPS):
        batches = _micro_batches(rank.case, rank.inputs, step)
        with rank.recording(f"step {step}"):
            loss = rank.student.accumulate_gradients(model, batches, _mean_loss)
        rank.fact("graph", isinstance(loss, Tensor) and loss.requires_grad)
        rank.fact(f"passes {step}", [*passes])
        passes.clear()
        rank.answer(f"loss {step}", torch.as_tensor(loss).float())
        send_gradients_and_step(rank, net, step)


def _note_passes(output: Tensor, passes: list[list[str | int]]) -> None:
    """Add a forward that gave this output, [rows, width], and its backward when it comes."""
    rows = len(output)
    passes.append(["forward", rows])
    if output.requires_grad:
        output.register_hook(lambda _: passes.append(["backward", rows]))


def _loss_of_one_batch(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The mean over all of a rank's rows."""
    pairs = _micro_batches(case, handed, step)
    x, target = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
    return _mean_loss(model(x), target)


# -- judges


def _returns_the_mean(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step in range(STEPS):
            wanted = evidence.reference(answer)[f"loss {step}.{answer.rank}"].float()
            yield same("the mean over this rank's rows", wanted, answer, f"loss {step}")
        graph = "a graph behind it, which keeps all activations" if answer.facts["graph"] else ""
        yield Finding(not graph, "a detached loss", graph, answer.rank)


def _sends_once(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        calls = calls_of(answer, "step 0")
        total, moved = sum(map(nbytes, trained(evidence.first_net(answer)))), sum(n for _, n in calls)
        told = f"the gradients' {total:,} bytes once, whatever the number of micro-batches"
        yield Finding(moved == total, told, f"{moved:,} bytes: {calls_text(calls)}", answer.rank)
        plain = calls_of(answer, "plain")
        told = f"what the model sends in one backward: {calls_text(plain)}"
        yield Finding(calls == plain, told, calls_text(calls), answer.rank)


def _goes_one_by_one(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """Each micro-batch went forward once and back once before the next, in any order of theirs."""
    for answer in evidence.answers:
        for step in range(STEPS):
            passes = answer.facts[f"passes {step}"]
            sizes = _sizes(evidence.case)
            rows = [size for _, size in passes[::2]]
            right = passes == [[kind, size] for size in rows for kind in ("forward", "backward")]
            seen = ", ".join(f"{kind} of {size}" for kind, size in passes)
            told = f"forward and backward of one micro-batch, then of the next; of {sizes} rows"
            yield Finding(right and sorted(rows) == sorted(sizes), told, seen, answer.rank)


BOTH = every(GRADIENTS, _returns_the_mean)
_RUN = Run(_accumulate, net_inputs, hand_own, partial(ReplicaEvidence, loss=_loss_of_one_batch))
EXERCISE = Exercise(
    "03.accumulate-gradients",
    "Accumulation",
    ("accumulate_gradients",),
    dict.fromkeys(("values", "uneven", "own-parts"), _RUN),
    _cases,
    (
        Property(
            "gradients",
            "numbers",
            3,
            "The gradients are those of one large batch",
            "each loss must count with its share of the rows",
            {"values": GRADIENTS},
        ),
        Property(
            "loss",
            "numbers",
            1,
            "The result is the mean loss over this rank's rows, detached",
            on={"values": _returns_the_mean},
        ),
        Property(
            "communication",
            "mechanism",
            6,
            "Each micro-batch goes forward and back before the next, and the last backward alone sends",
            "model.no_sync() around all but the last backward, and a backward for each micro-batch",
            {"values": every(_sends_once, _goes_one_by_one)},
        ),
        Property(
            "uneven-micro-batches",
            "robustness",
            1,
            "Micro-batches may differ in size, and there may be just one",
            "dividing by their number is right only when they are equal",
            {"uneven": BOTH},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own OverlappedDataParallel",
            on={"own-parts": BOTH},
        ),
    ),
    builds_on=(OVERLAP_ID,),
    forbids=TORCHS_OWN,
)
