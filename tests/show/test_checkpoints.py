"""Bytes over a step, as drawn: the dot where backward begins is on the curve."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.lines import Line2D
from torch import nn

from labkit.record.live import watch_step
from labkit.show.checkpoints import draw_held
from labkit.show.measured import measured_on_a_gpu


def lines(histories: dict[str, Any], turns: dict[str, int]) -> list[Line2D]:
    return draw_held(histories, turns).figure.axes[0].lines


def points(line: Line2D) -> list[tuple[float, float]]:
    x, y = line.get_data()
    return list(zip(map(float, x), map(float, y), strict=True))


def test_the_dot_is_on_the_curve_behind_as_many_operations_as_forward_has() -> None:
    chain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    step = watch_step(chain, torch.randn(4, 8), chain)
    curve, dot = map(points, lines({"all": step.history}, {"all": step.turn}))
    assert [x for x, _ in curve] == list(range(1, len(step.history) + 1))
    assert dot == [curve[step.turn - 1]]
    assert dot[0][0] == step.turn


def test_the_dot_of_what_was_measured_on_a_gpu_is_at_the_end_of_its_forward() -> None:
    """Marks: at the beginning, at both ends of each layer, and where the loss is there. Backward is next."""
    found = measured_on_a_gpu("recomputation_h100").found
    held = {name: plan["bytes"] for name, plan in found["histories"].items()}
    turns = {name: plan["turn"] for name, plan in found["histories"].items()}
    assert set(turns.values()) == {2 * found["layers"] + 2}
    drawn = [points(line) for line in lines(held, turns)]
    assert all(dot[0] in curve for curve, dot in zip(drawn[::2], drawn[1::2], strict=True))
