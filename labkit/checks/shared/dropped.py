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
    in_calls = [entered for _ in range(CALLS) for entered in _entering(part, call)]
    part.eval()
    in_evaluation = _entering(part, call)
    if in_evaluation and len(in_calls) == CALLS:
        entered = torch.stack(in_calls)
        rank.answer("entered", entered)
        rank.answer("expected", (in_evaluation[0] / (1 - dropout)).where(entered != 0, 0.0))


def _entering(part: nn.Module, call: Callable[[], Any]) -> list[Tensor]:
    """What enters the first block in a call without gradients, the first time; nothing where its forward is
    not called. A hook would not see a forward that is called by name.
    """
    entered: list[Tensor] = []
    first = next(part.get_submodule("blocks").children())
    own, forward = vars(first).get("forward"), first.forward

    def noting(*args: Any, **kwargs: Any) -> Any:
        entered.extend(t.clone() for t in (*args, *kwargs.values()) if isinstance(t, Tensor))
        return forward(*args, **kwargs)

    first.forward = noting
    try:
        with torch.no_grad():
            call()
    finally:
        del first.forward
        if own is not None:
            first.forward = own
    return entered[:1]


def drops_as_asked(answer: RankAnswer, dropout: float) -> Iterator[Finding]:
    """What `note_dropped` noted."""
    if "entered" not in answer.tensors:
        told = "the first block called with the vectors, in training and in evaluation"
        yield Finding(False, told, "none were seen to enter it", answer.rank)
        return
    zeros = (answer.tensors["entered"] == 0).double()
    dropped, room = zeros.mean().item(), WITHIN * (dropout * (1 - dropout) / zeros.numel()) ** 0.5
    told = f"about {dropout:.0%} of the vectors' numbers dropped in training, under no_grad too"
    yield Finding(abs(dropped - dropout) < room, told, f"{dropped:.0%}", answer.rank)
    told = f"what is not dropped of the vectors as in evaluation, divided by 1 - {dropout}"
    yield same(told, answer.tensors["expected"], answer, "entered")
