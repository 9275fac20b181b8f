"""What `03.accumulate-gradients` must show: several micro-batches, as if they were one large batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import product

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
from labkit.checks.shared.forwards import note_forwards
from labkit.checks.shared.places import enter_group


def _cases(seed: int) -> list[Case]:
    unusual = {"lengths": [1, 4, 2], "evaluated": True}
    one = {"sizes": [[4], [2]], "frozen": ["last.bias"]}
    unequal = [[rows] * MICRO_BATCHES for rows in (2, 1, 1, 2)]
    return [
        net_case("three micro-batches", "values", 2, seed),
        net_case("three micro-batches of 2 rows or 1, on four ranks", "values", 4, seed, sizes=unequal),
        net_case("5, 2 and 5 rows, 1 and 4", "uneven", 2, seed, sizes=[[5, 2, 5], [1, 4]], **unusual),
        net_case("one micro-batch, then one thrice", "uneven", 2, seed, times=[1, 3], **one),
        net_case("with your own wrapper", "own-parts", 2, seed),
    ]


Pair = tuple[Tensor, Tensor]
"""The rows of a micro-batch, and their targets."""


def _micro_batches(case: Case, handed: Inputs, rank: int, step: int) -> list[Pair]:
    """Rows and targets, of the sizes that the case asks for on a rank."""
    x, target = handed["x"][step], handed["target"][step]
    return [(x[m, :size], target[m, :size]) for m, size in enumerate(_sizes(case, rank, step))]


def _sizes(case: Case, rank: int, step: int) -> list[int]:
    """The rows of each micro-batch of a rank. The case's `sizes` has them for each rank, its `then` those of
    the second step where they are others.
    """
    name = "then" if step and "then" in case.params else "sizes"
    return case.params[name][rank] if name in case.params else [case.params["rows"]] * MICRO_BATCHES


def _times(case: Case, step: int) -> int:
    """How many times each micro-batch comes in a step: more of the same rows have the same mean loss."""
    return int(case.params["times"][step]) if "times" in case.params else 1


def _to_hand_over(case: Case, pairs: Sequence[Pair]) -> list[Pair] | tuple[Pair, ...]:
    """The same rows in tensors of their own. Where the case has `lengths`: a tuple, not a list, and each row
    of a micro-batch so many times, [rows, length, width], which leaves its mean loss as it is.
    """
    lengths = case.params.get("lengths")
    if not lengths:
        return [(x.clone(), target.clone()) for x, target in pairs]
    return tuple(
        (_repeated(x, length), _repeated(target, length))
        for (x, target), length in zip(pairs, lengths, strict=False)
    )


def _repeated(rows: Tensor, length: int) -> Tensor:
    return rows.unsqueeze(1).repeat(1, length, 1)


def _mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """A mean over rows in which the two do not change places."""
    return F.mse_loss(torch.tanh(output), target)


class _Saved:
    """A tensor that a graph has saved for its backward, which lets it go."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Watch:
    """Sees each forward and backward of a net, of how many rows, and how many earlier graphs are there when
    another forward begins, and how many tensors that these have saved.
    """

    def __init__(self, net: nn.Module) -> None:
        self.passes: list[list[str | int]] = []
        self.held = self.saved = self.of_model = 0
        self._kept: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._graphs: list[weakref.ref[Callable[[Tensor], None]]] = []
        note_forwards(net, lambda *_: self._count(), self._note)

    def _count(self) -> None:
        if self._alive() > 1 or self._kept:
            gc.collect()
        self.held, self.saved = max(self.held, self._alive()), max(self.saved, len(self._kept))

    def count_forwards(self, model: nn.Module) -> None:
        """From now on, count the forwards of what the net is wrapped in, too."""

        def count(*_: object) -> None:
            self.of_model += 1

        note_forwards(model, count)

    def saving(self) -> AbstractContextManager[object]:
        """Inside, what graphs save is seen."""
        return torch.autograd.graph.saved_tensors_hooks(self._keep, lambda saved: saved.tensor)

    def _keep(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())
        self._kept.add(saved)
        return saved

    def _alive(self) -> int:
        return sum(graph() is not None for graph in self._graphs)

    def _note(self, output: Tensor) -> None:
        rows = len(output)
        self.passes.append(["forward", rows])
        if output.requires_grad:

            def came(_: Tensor) -> None:  # the graph's own: it goes when the graph goes
                self.passes.append(["backward", rows])

            output.register_hook(came)
            self._graphs.append(weakref.ref(came))


def _accumulate(rank: Rank) -> None:
    """Steps of several micro-batches each, through the data-parallel wrapper.

    Answers: loss STEP, grad STEP.NAME. Facts: returned STEP, what the loss is; graph STEP, whether it holds
    one; passes STEP, each forward and backward in order, and of how many rows; of the model STEP, how many
    forwards of the wrapper; held, the most graphs of earlier micro-batches when another begins; saved, the
    most tensors that these have saved; changed STEP, whether what was handed over is; modes STEP, whether all
    modules are in the mode in which they were. Recordings: plain, of a backward of one micro-batch; step
    STEP. The case's `resting` names layers that are in evaluation mode.
    """
    group, net = enter_group(rank), net_of(rank.case, rank.inputs)
    model = rank.student.OverlappedDataParallel(net, group, rank.params["bucket_bytes"])
    model.train(net.training)
    for name in rank.params.get("resting", ()):
        net.get_submodule(name).eval()
    given = [_micro_batches(rank.case, rank.inputs, rank.rank, step) for step in range(STEPS)]
    x, target = given[0][0]
    loss = _mean_loss(model(x), target)
    with rank.recording("plain"):
        loss.backward()
    net.zero_grad()
    watch = _Watch(net)
    watch.count_forwards(model)
    for step in range(STEPS):
        handed, copies = (_to_hand_over(rank.case, given[step]) * _times(rank.case, step) for _ in range(2))
        modes = _modes(model)
        with rank.recording(f"step {step}"), watch.saving():
            loss = rank.student.accumulate_gradients(model, handed, _mean_loss)
        rank.fact(f"modes {step}", _modes(model) == modes)
        rank.fact(f"returned {step}", "Tensor" if isinstance(loss, Tensor) else type(loss).__name__)
        rank.fact(f"graph {step}", isinstance(loss, Tensor) and loss.requires_grad)
        rank.fact(f"passes {step}", [*watch.passes])
        watch.passes.clear()
        rank.fact(f"of the model {step}", watch.of_model)
        watch.of_model = 0
        rank.fact("held", watch.held)
        rank.fact("saved", watch.saved)
        rank.fact(f"changed {step}", not _are_as_they_were(handed, copies))
        rank.answer(f"loss {step}", torch.as_tensor(loss).float())
        send_gradients_and_step(rank, net, step)


def _modes(model: nn.Module) -> dict[str, bool]:
    """Whether each of the modules is in training mode."""
    return {name: module.training for name, module in model.named_modules()}


def _are_as_they_were(handed: Sequence[Pair], copies: Sequence[Pair]) -> bool:
    """Whether micro-batches are there still, with the same numbers, and ask for no gradient."""
    now, before = ([tensor for pair in pairs for tensor in pair] for pairs in (handed, copies))
    kept = all(torch.equal(a, b) and not a.requires_grad for a, b in zip(now, before, strict=False))
    return kept and len(now) == len(before)


def _loss_of_one_batch(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int) -> Tensor:
    """The mean over all of a rank's rows."""
    pairs = _micro_batches(case, handed, rank, step)
    x, target = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
    return _mean_loss(model(x), target)


# -- judges


def _returns_the_mean(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step in range(STEPS):
            wanted = evidence.reference(answer)[f"loss {step}.{answer.rank}"].float()
            yield same("the mean over this rank's rows", wanted, answer, f"loss {step}")
            graph = "a graph behind it, which keeps all activations" if answer.facts[f"graph {step}"] else ""
            yield Finding(not graph, "a detached loss", graph, answer.rank)


def _returns_a_tensor(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer, step in product(evidence.answers, range(STEPS)):
        returned = answer.facts[f"returned {step}"]
        yield Finding(returned == "Tensor", "a Tensor", returned, answer.rank)


def _lets_go(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """A graph may be there when the next forward begins, as in a loop whose variable still has its loss: its
    backward has let go what it had saved.
    """
    for answer in evidence.answers:
        held, saved = answer.facts["held"], answer.facts["saved"]
        told = "the graph of one micro-batch at a time"
        yield Finding(held <= 1, told, f"{held} earlier ones when another began", answer.rank)
        told = "nothing that one micro-batch saved for its backward there when the next begins"
        yield Finding(saved == 0, told, f"{saved} tensors of earlier ones", answer.rank)


def _leaves_what_it_is_handed(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        changed = any(answer.facts[f"changed {step}"] for step in range(STEPS))
        yield Finding(not changed, "the micro-batches as they were", "changed", answer.rank)


def _keeps_modes(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        kept = all(answer.facts[f"modes {step}"] for step in range(STEPS))
        told = "the model and all modules in it in the mode (training or not) in which they were"
        yield Finding(kept, told, "a mode was changed", answer.rank)


def _sends_once(evidence: ReplicaEvidence) -> Iterator[Finding]:
    for answer, step in product(evidence.answers, range(STEPS)):
        calls = calls_of(answer, f"step {step}")
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
            sizes = _sizes(evidence.case, answer.rank, step) * _times(evidence.case, step)
            rows = [size for _, size in passes[::2]]
            right = passes == [[kind, size] for size in rows for kind in ("forward", "backward")]
            seen = ", ".join(f"{kind} of {size}" for kind, size in passes)
            told = f"forward and backward of one micro-batch, then of the next; of {sizes} rows"
            yield Finding(right and sorted(rows) == sorted(sizes), told, seen, answer.rank)
            calls = answer.facts[f"of the model {step}"]
            told = f"{len(sizes)} forwards of the model, not of the module in it"
            yield Finding(calls == len(sizes), told, f"{calls} of the model", answer.rank)


BOTH = every(GRADIENTS, _returns_the_mean, _leaves_what_it_is_handed, _keeps_modes)
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
            "The result is the mean loss over this rank's rows, a detached tensor, and no earlier graph is"
            " kept",
            "losses that are added up must be detached first: each keeps its graph",
            {"values": every(_returns_the_mean, _returns_a_tensor, _lets_go)},
            dict.fromkeys(("uneven", "own-parts"), every(_returns_a_tensor, _lets_go)),
        ),
        Property(
            "communication",
            "mechanism",
            6,
            "Each micro-batch goes forward and back before the next, and the last backward alone sends",
            "model.no_sync() around all but the last backward, and a backward for each micro-batch",
            {"values": every(_sends_once, _goes_one_by_one)},
            dict.fromkeys(("uneven", "own-parts"), _goes_one_by_one),  # of the own wrapper's calls no word
        ),
        Property(
            "uneven-micro-batches",
            "robustness",
            1,
            "Micro-batches may differ in size and number, also between ranks; there may be just one, or the"
            " same one several times",
            "dividing by their number is right only when all are equal; the last one is known by its place; a"
            " single one's loss is detached as well",
            {"uneven": every(BOTH, _sends_once)},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own OverlappedDataParallel",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            on={"own-parts": BOTH},
        ),
    ),
    builds_on=(OVERLAP_ID,),
    forbids=TORCHS_OWN,
)
