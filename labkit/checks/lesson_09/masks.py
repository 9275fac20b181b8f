"""Which numbers of the embeddings are dropped, step by step: others each time, on other replicas and with
another seed, and the same ones along tp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.lesson_09.training_job import spot_of, steps_of
from labkit.checks.lesson_09.training_judges import GridEvidence
from labkit.checks.rank import Rank
from labkit.parallel import library_parts

Entered = dict[int, list[Tensor]]  # where a block is -> which numbers are 0 of what enters it, call by call
DROPPED, OF_ANOTHER_SEED = "dropped", "dropped with another seed"


def noting_block(entered: Entered) -> Any:
    """The library's block, with note of what enters it."""

    class Noting(library_parts().block):  # type: ignore[misc]  # which class that is, is the library's affair
        def forward(self, x: Tensor) -> Any:
            entered.setdefault(id(self), []).append((x == 0).flatten(1).cpu())
            return super().forward(x)

    return Noting


def answer_dropped(rank: Rank, name: str, stage: Any, entered: Entered) -> None:
    """Answer which numbers of what entered a stage's first block were 0, [rows of all calls, numbers of a
    row], and forget them.
    """
    first = next(stage.get_submodule("blocks").children())
    calls = entered.pop(id(first), [])
    entered.clear()
    if calls:
        rank.answer(name, torch.cat(calls).byte())


def other_masks_each_time(evidence: GridEvidence) -> Iterator[Finding]:
    """No two steps drop the same numbers, nor do two calls of a stage."""
    for answer in _of_first_stages(evidence):
        told = "other numbers of the embeddings dropped in each step, and in each call"
        steps_differ = _changes(evidence, answer)
        yield Finding(steps_differ, told, "those of the first step again in the last one", answer.rank)
        calls = [call == 0 for call in answer.tensors.get("entered", ())]
        again = any(one.equal(other) for n, one in enumerate(calls) for other in calls[:n])
        yield Finding(not again, told, "the same ones in two calls", answer.rank)


def masks_alike_along_tensor(evidence: GridEvidence) -> Iterator[Finding]:
    """Ranks of a tensor-parallel group drop the same numbers of the embeddings, which they have whole."""
    for answer in _of_first_stages(evidence):
        first = spot_of(evidence.case, answer.rank).groups["tp"][0]
        told = f"the numbers of the embeddings dropped that rank {first} drops"
        theirs = evidence.answers[first].tensors.get(DROPPED)
        alike = theirs is not None and theirs.equal(answer.tensors[DROPPED])
        yield Finding(alike, told, "other ones", answer.rank)


def other_masks_elsewhere(evidence: GridEvidence) -> Iterator[Finding]:
    """No two replicas drop the same numbers of the embeddings, nor do two runs of different seeds. Where
    masks do not change at all, that is another mistake.
    """
    for answer in _of_first_stages(evidence):
        if not _changes(evidence, answer):
            continue
        own = answer.tensors[DROPPED]
        for other in spot_of(evidence.case, answer.rank).groups["dp"]:
            theirs = evidence.answers[other].tensors.get(DROPPED)
            told = f"other numbers of the embeddings dropped than on rank {other}, of another replica"
            differ = other == answer.rank or theirs is None or not own.equal(theirs)
            yield Finding(differ, told, "the same ones", answer.rank)
        of_another = answer.tensors.get(OF_ANOTHER_SEED)
        if of_another is not None:
            told = "other numbers of the embeddings dropped with another seed"
            differ = not own[: len(of_another)].equal(of_another)
            yield Finding(differ, told, "the same ones in the first step", answer.rank)


def _of_first_stages(evidence: GridEvidence) -> Iterator[RankAnswer]:
    """The answers of ranks that noted what is dropped: what never enters a block, others ask for."""
    return (answer for answer in evidence.answers if DROPPED in answer.tensors)


def _changes(evidence: GridEvidence, answer: RankAnswer) -> bool:
    """Whether the first step and the last one, of equally many rows, drop different numbers."""
    dropped = answer.tensors[DROPPED]
    rows = len(dropped) // steps_of(evidence.case)
    return not dropped[:rows].equal(dropped[len(dropped) - rows :])
