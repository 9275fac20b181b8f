"""A difference of two tensors says what a student needs to find it: dtype, digits that differ, a factor."""

from __future__ import annotations

import pytest
import torch

from labkit.checks.compare import difference

NUMBERS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (2 * NUMBERS, "all are 2 times what was expected"),
        (-NUMBERS / 3, "all are -0.3333 times what was expected"),
        (0 * NUMBERS, "all are zero"),
        (NUMBERS + 1e-7, "1.0000001 instead of 1"),
        (NUMBERS.float(), "dtype float32 instead of float64"),
        (NUMBERS[:2], "shape (2,) instead of (3,)"),
        (NUMBERS + 1, "3 of 3 elements (float64) differ"),
    ],
)
def test_what_is_said(seen: torch.Tensor, says: str) -> None:
    assert says in (difference(NUMBERS, seen) or "nothing")


def test_one_number_has_no_elements() -> None:
    """A loss or a norm is told as what it is, with the factor where there is one."""
    expected = torch.tensor(4.0, dtype=torch.float64)
    assert difference(expected, expected / 2) == "2 (float64) instead of 4; 0.5 times what was expected"
    assert difference(0 * expected, expected) == "4 (float64) instead of 0"


@pytest.mark.parametrize("seen", [NUMBERS + 1, torch.tensor([2.0, -2.0, 0.5]).double()])
def test_no_factor_where_there_is_none(seen: torch.Tensor) -> None:
    assert "times" not in (difference(NUMBERS, seen) or "nothing")


def test_nothing_is_said_of_rounding_and_integers_are_exact() -> None:
    assert difference(NUMBERS, NUMBERS * (1 + 1e-12)) is None
    large = torch.tensor([2**62])
    assert f"{2**62 + 1} instead of {2**62}" in (difference(large, large + 1) or "nothing")


def test_infinities_are_equal_where_both_have_them() -> None:
    """And make no room for other numbers to differ."""
    inf = float("inf")
    expected = torch.tensor([1.0, -inf])
    assert difference(expected, expected.clone()) is None
    assert "5 instead of -inf" in (difference(expected, torch.tensor([1.0, 5.0])) or "nothing")
    assert "2 instead of 1" in (difference(expected, torch.tensor([2.0, -inf])) or "nothing")
    assert difference(expected, -expected) == "1 of 2 elements are not finite"
    assert difference(expected.abs(), torch.tensor([float("nan"), inf])) == "1 of 2 elements are not finite"
