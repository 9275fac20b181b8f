"""Numbers from student code: what counts as equal, and what is said of everything else."""

from __future__ import annotations

import pytest
import torch

from labkit.checks.shared.plain_numbers import number_or_words, wrong_number


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (0.25, None),
        (0.25 * (1 + 1e-12), None),
        (0.5, "0.5 instead of 0.25, 2 times as much"),
        (0.25000001, "0.25000001 instead of 0.25"),  # the same to six digits
        (float("nan"), "nan"),
        (10**400, "a number of 1329 bits"),  # no float holds it
        (True, "True instead of a number"),
        ([0.25], "[0.25] instead of a number"),
        ({"a": 0.25}, "a dict instead of a number"),
        (None, "None instead of a number"),
    ],
)
def test_what_a_rank_sent_is_judged_whatever_it_is(seen: object, says: str | None) -> None:
    assert wrong_number(0.25, seen) == says


def test_zero_is_expected_exactly() -> None:
    assert wrong_number(0.0, 0.0) is None
    assert wrong_number(0.0, 1e-30) == "1e-30 instead of 0"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (3, 3),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5]), 0.5),
        (None, "NoneType None"),
        (True, "bool True"),
        (torch.tensor([1, 2]), "Tensor tensor([1, 2])"),
        ({"a": 1}, "dict {'a': 1}"),
    ],
)
def test_what_is_no_number_is_sent_as_words(value: object, sent: object) -> None:
    assert number_or_words(value) == sent
