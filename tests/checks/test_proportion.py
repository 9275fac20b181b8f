"""What counts beside memory and calls: numbers that were computed, up to one factor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from labkit.checks.shared.proportion import change_since, in_proportion

EXPECTED = [torch.tensor([1.0, -2.0]), torch.tensor([[3.0], [0.5]])]
ROUNDED = [2 * tensor + 0.01 for tensor in EXPECTED]


@pytest.mark.parametrize("seen", [EXPECTED, ROUNDED, [-4 * tensor for tensor in EXPECTED]])
def test_one_factor_for_all_is_let_pass(seen: list[Tensor]) -> None:
    assert in_proportion("numbers", EXPECTED, seen, 0).passed


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([0 * tensor for tensor in EXPECTED], "zeros"),
        ([EXPECTED[0], 2 * EXPECTED[1]], "other numbers"),
        ([EXPECTED[0], EXPECTED[1].flip(0)], "other numbers"),
        ([EXPECTED[0], EXPECTED[1] / 0], "not finite"),
        ([EXPECTED[0], None], "None"),
        ([EXPECTED[0], torch.ones(3)], "(3,)"),
    ],
)
def test_anything_else_is_told(seen: list[Tensor | None], told: str) -> None:
    found = in_proportion("numbers", EXPECTED, seen, 3)
    assert not found.passed
    assert told in found.seen
    assert found.rank == 3


def test_a_tensor_of_another_shape_is_not_spread_over_the_right_one() -> None:
    start, seen = torch.zeros(3, 5), torch.ones(200, 1, 1)
    assert change_since(start, seen).numel() == 200
    assert change_since(start, torch.ones(3, 5)).sum() == 15


@pytest.mark.parametrize(
    ("seen", "passes"),
    [
        (torch.zeros(3), True),
        (torch.full((3,), 1e-3), True),
        (torch.ones(3), False),
        (torch.full((3,), math.nan), False),
    ],
)
def test_to_zeros_nothing_is_in_proportion_but_zeros(seen: torch.Tensor, passes: bool) -> None:
    """As on a rank that has a first token alone: its query has no gradient, but for what rounding leaves."""
    assert in_proportion("numbers", [torch.zeros(3)], [seen], 0).passed is passes
