"""Bars of memory: what cannot be one, what has no colour, and what is small."""

from __future__ import annotations

import math
import re

import pytest

from labkit.show import memory


@pytest.mark.parametrize("amount", [math.nan, math.inf, -1.0, ..., "2"])
def test_bytes_are_numbers_from_0(amount: object) -> None:
    with pytest.raises(ValueError, match="mine: expected the bytes of 'weights', 0 or more, found"):
        memory.draw_memory({"mine": {"weights": amount}})  # type: ignore[dict-item]


@pytest.mark.parametrize("row", [None, 5.0])
def test_a_function_that_forgot_to_return_its_bytes(row: object) -> None:
    with pytest.raises(TypeError, match=f"mine: expected bytes by part.*found {row}"):
        memory.draw_memory({"mine": row})  # type: ignore[dict-item]


def test_parts_without_a_colour_are_in_the_legend() -> None:
    html = memory.draw_memory({"mine": {"grads": 2e9, "weights": 1e9}})._repr_html_()
    assert [name for name in ("weights", "grads") if f">{name}</text>" in html] == ["weights", "grads"]


@pytest.mark.parametrize(("most", "unit"), [(900, "B"), (3e3, "KiB"), (5e6, "MiB"), (2e9, "GiB")])
def test_small_bars_have_a_small_unit(most: float, unit: str) -> None:
    html = memory.draw_memory({"mine": {"weights": most}})._repr_html_()
    assert f">{unit}</text>" in html
    assert not re.search(r">[\d.]+e[-+]?\d+</text>", html)
