"""What a check and a scoreboard say to a call that cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.checks.practice import check
from labkit.checks.scoreboard import scoreboard


class Written:
    """In place of a student's class."""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((Written,), "id first, in quotes, .* found Written"),
        ((6, Written), "id first, in quotes, .* found 6"),
        (
            ("06.row-parallel-linear",),
            r'expected check\("06.row-parallel-linear", RowParallelLinear\).* nothing',
        ),
        (("06.row-parallel-linear", Written, 3), "found Written, 3 behind the id"),
    ],
)
def test_a_check_says_how_it_is_called(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        check(*given)


def test_a_scoreboard_says_how_it_is_called() -> None:
    with pytest.raises(TypeError, match=r'in quotes, as in scoreboard."06".*found 6'):
        scoreboard(6)  # type: ignore[arg-type]
