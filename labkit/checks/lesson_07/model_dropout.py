"""Dropout in the whole model of lesson 07: what is tried with it, and what must come of that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.exercise import Finding, every
from labkit.checks.lesson_07.modules import modes_changed, modes_of, ranks_agree, sequence_parallel
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same
from labkit.checks.shared.dropped import drops_as_asked, note_dropped
from labkit.checks.shared.split import Split, SplitEvidence, loaded, under

OTHER_SEEDS = 1, 2


def watch_model_dropout(rank: Rank, split: Split) -> None:
    """Answers: first loss, second loss, the gradient of positions, the loss in evaluation, and for each block
    as "left N" where it left x as it was, in the second forward. Of what enters the first block: entered, in
    some calls in training without gradients, after the one in evaluation, and expected, the same from what
    enters it in evaluation.
    Fact: modes, what is in another mode in the whole model afterwards. Answers of other models: "same seed",
    the first loss of one of the same seed, and "other seeds", of two of others.

    The part is made of a model in evaluation, as its own mode is what counts.
    """
    full = split.handed(rank).eval()
    before = modes_of(full)
    part = split.build(rank, full, rank.group).train()
    left: dict[str, Tensor] = {}
    for number, block in enumerate(part.get_submodule("blocks").children()):
        block.register_forward_hook(partial(_note_what_is_left, left, f"left {number}"))
    for name in ("first", "second"):
        part.zero_grad()
        loss = split.use(part, [rank.inputs["ids"], rank.inputs["targets"]])
        loss.backward()
        rank.answer(f"{name} loss", loss)
    rank.answer("positions", dict(part.named_parameters())["positions"].grad)
    for name, tensor in left.items():
        rank.answer(name, tensor)
    rank.fact("modes", modes_changed(before, full))
    once = partial(split.use, part, [rank.inputs["ids"], rank.inputs["targets"]])
    part.eval()
    rank.answer("evaluated", once())
    note_dropped(rank, part, rank.params["dropout"], once)
    rank.answer("same seed", _first_loss(rank, split, full, 0))
    rank.answer("other seeds", torch.stack([_first_loss(rank, split, full, more) for more in OTHER_SEEDS]))


@torch.no_grad()
def _first_loss(rank: Rank, split: Split, full: nn.Module, more: int) -> Tensor:
    """What a model in training gives first; more: of the seed than in the case."""
    seed = rank.case.seed + more
    part = rank.student.TensorParallelGPT.from_full(full, rank.group, seed, sequence_parallel(rank.case))
    return split.use(part.train(), [rank.inputs["ids"], rank.inputs["targets"]])


def _note_what_is_left(
    left: dict[str, Tensor], name: str, block: nn.Module, given: tuple[Tensor, ...], out: Tensor
) -> None:
    left[name] = (out == given[0]).detach()


def _other_loss_each_time(evidence: SplitEvidence) -> Iterator[Finding]:
    first, second = (evidence.answers[0].tensors[f"{n} loss"] for n in ("first", "second"))
    yield Finding(not torch.equal(first, second), "another loss each time", "the same", 0)


def _by_its_seed(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        first, others = answer.tensors["first loss"], answer.tensors["other seeds"]
        yield same("the first loss of a model of the same seed", first, answer, "same seed")
        alike = len(torch.cat([first.view(1), others.view(-1)]).unique()) <= len(others)
        yield Finding(not alike, "other losses of models of other seeds", "the same", answer.rank)


def _blocks_drop_apart(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        one, two = (answer.tensors.get(f"left {number}") for number in (0, 1))
        if one is not None and two is not None:
            told = "other places dropped by the second block than by the first"
            yield Finding(not torch.equal(one, two), told, "the same places", answer.rank)


def _drops_without_gradients(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        yield from drops_as_asked(answer, evidence.case.params["dropout"])


def _drops_others_each_time(evidence: SplitEvidence) -> Iterator[Finding]:
    """Each of the calls drops other numbers of what enters the first block."""
    for answer in evidence.answers:
        first, *later = (answer.tensors["entered"] == 0).unbind()
        again = sum(torch.equal(first, dropped) for dropped in later)
        told = "other numbers of the vectors dropped in each call"
        yield Finding(not again, told, f"those of the first {again} times more", answer.rank)


def _drops_nothing_in_evaluation(evidence: SplitEvidence) -> Iterator[Finding]:
    full = loaded(evidence.split.plain(evidence.case), under("full.", evidence.inputs)).eval()
    with torch.no_grad():
        loss = evidence.split.use(full, [evidence.inputs[name][0] for name in evidence.split.arguments])
    for answer in evidence.answers:
        yield same("the whole model's loss after eval()", loss, answer, "evaluated")


def _own_tokens_drop_apart(evidence: SplitEvidence) -> Iterator[Finding]:
    """Where tokens are divided, each rank drops other places of its own: the gradient of positions is zero
    where a single sequence was dropped.
    """
    if not sequence_parallel(evidence.case):
        return
    gradient = evidence.answers[0].tensors["positions"][: evidence.case.params["sequence"]]
    first, second = (half == 0 for half in gradient.chunk(evidence.case.ranks)[:2])
    alike = (first == second).double().mean().item()
    told = "other places of rank 1's tokens dropped than of rank 0's"
    yield Finding(alike < 0.9, told, f"{alike:.0%} of the places are the same", 1)


_WITH_DROPOUT = {
    "first loss": "the first loss with dropout",
    "second loss": "the second loss with dropout",
    "positions": "the gradient of positions",
}

DROPS_AS_ONE_MODEL = every(
    ranks_agree(_WITH_DROPOUT),
    _other_loss_each_time,
    _by_its_seed,
    _own_tokens_drop_apart,
    _blocks_drop_apart,
    _drops_without_gradients,
    _drops_others_each_time,
    _drops_nothing_in_evaluation,
)
