"""Whether embeddings are dropped as dropout drops: with its probability, the rest divided by 1 - p."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same

CALLS = 8  # in which numbers are dropped, and counted
WITHIN = 6.0  # standard deviations from the probability: right answers leave that once in 10^7 cases


def note_dropped(rank: Rank, part: nn.Module, dropout: float, call: Callable[[], Any]) -> None:
    """Answers, of what enters the first of the part's blocks: entered, in some calls in training without
    gradients, and expected, the same from what enters it in evaluation. The part is left in evaluation.
    """
    part.train()
    entered = torch.stack([_entering(part, call) for _ in range(CALLS)])
    part.eval()
    whole = _entering(part, call) / (1 - dropout)
    rank.answer("entered", entered)
    rank.answer("expected", whole.where(entered != 0, 0.0))


def _entering(part: nn.Module, call: Callable[[], Any]) -> Tensor:
    """What enters the first block in a call without gradients."""
    entered: list[Tensor] = []
    first = next(part.get_submodule("blocks").children())
    hook = first.register_forward_pre_hook(lambda block, given: entered.append(given[0].clone()))
    with torch.no_grad():
        call()
    hook.remove()
    return entered[0]


def drops_as_asked(answer: RankAnswer, dropout: float) -> Iterator[Finding]:
    """What `note_dropped` noted."""
    zeros = (answer.tensors["entered"] == 0).double()
    dropped, room = zeros.mean().item(), WITHIN * (dropout * (1 - dropout) / zeros.numel()) ** 0.5
    told = f"about {dropout:.0%} of the vectors' numbers dropped in training, under no_grad too"
    yield Finding(abs(dropped - dropout) < room, told, f"{dropped:.0%}", answer.rank)
    told = f"what is not dropped of the vectors as in evaluation, divided by 1 - {dropout}"
    yield same(told, answer.tensors["expected"], answer, "entered")
