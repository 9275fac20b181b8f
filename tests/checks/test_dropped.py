"""What enters a block is seen, and whether it was dropped as asked, however the block is called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.rank import Rank
from labkit.checks.shared.dropped import drops_as_asked, note_dropped


class Dropping(nn.Module):
    """Two blocks behind a dropout; use: how the first is called."""

    def __init__(self, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.25)
        self.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.blocks[0], self.dropout(x))


WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "as it is": lambda block, x: block(x),
    "its forward": lambda block, x: block.forward(x),
    "by name": lambda block, x: block(input=x),
}


def noted(use: Callable[[nn.Module, Tensor], Tensor]) -> RankAnswer:
    rank = object.__new__(Rank)  # alone, without a group
    rank._answer = RankAnswer(0, {}, {}, {}, {})
    part = Dropping(use)
    note_dropped(rank, part, 0.25, lambda: part(torch.ones(50, 20)))
    assert "forward" not in vars(part.blocks[0])
    return rank.result


@pytest.mark.parametrize("way", WAYS)
def test_what_enters_a_block_is_seen_however_it_is_called(way: str) -> None:
    assert all(finding.passed for finding in drops_as_asked(noted(WAYS[way]), 0.25))


def test_a_block_that_is_not_called_is_told() -> None:
    (finding,) = drops_as_asked(noted(lambda block, x: x), 0.25)
    assert not finding.passed
    assert finding.seen == "none were seen to enter it"
