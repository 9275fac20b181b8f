"""Collectives as pictures: what each rank holds before and after, from values that ranks really returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import GREY, INK, NOTEBOOK_WIDTH, PALE, Picture, drawing_board, expect_some, rank_color

Holding = Sequence[float]  # the numbers one rank holds
CELL = 0.92


def draw_collectives(results: Sequence[Mapping[str, tuple[Holding, Holding]]], columns: int = 2) -> Picture:
    """For each collective, the ranks' numbers before and after it.

    results: one mapping a rank, name -> (numbers before, numbers after), as a job's `results` hold them. A
    number that one rank brought keeps that rank's colour wherever it goes; a sum is white with a hatch.
    """
    expect_some(results, "rank")
    names = list(results[0])
    expect_some(names, "collective")
    rows = -(-len(names) // columns)
    size = (NOTEBOOK_WIDTH / 2 * columns, 0.36 * rows * (len(results) + 1.2))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes in panels[len(names) :]:
        drawing_board(axes)
    for axes, name in zip(panels, names, strict=False):
        before, after = ([rank[name][i] for rank in results] for i in (0, 1))
        _draw_one(axes, name, before, after)
    return Picture(figure, _in_words(results))


def _draw_one(axes: Axes, name: str, before: Sequence[Holding], after: Sequence[Holding]) -> None:
    drawing_board(axes)
    owner = _owners(before)
    left = max(map(len, before))
    gap = left + 1.3
    for rank, (held, holds) in enumerate(zip(before, after, strict=True)):
        axes.text(-0.25, rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=8, color=INK)
        _draw_row(axes, held, 0, rank, owner)
        _draw_row(axes, holds, gap, rank, owner)
    middle = len(before) / 2
    axes.annotate(
        "", (gap - 0.2, middle), (left + 0.2, middle), arrowprops={"arrowstyle": "-|>", "color": INK}
    )
    axes.set_title(name.replace("_", "-"), fontsize=10, color=INK, pad=3)
    axes.set_xlim(-2.1, gap + max(left, *map(len, after)) + 0.1)
    axes.set_ylim(len(before) + 0.1, -0.1)


def _draw_row(axes: Axes, numbers: Holding, left: float, rank: int, owner: Mapping[float, int]) -> None:
    for index, number in enumerate(numbers):
        source = owner.get(number)
        style: dict[str, Any] = {"facecolor": "white", "hatch": "////", "edgecolor": GREY}
        if number == 0:
            style = {"facecolor": PALE, "edgecolor": "white"}
        elif source is not None:
            style = {"facecolor": rank_color(source), "edgecolor": "white"}
        axes.add_patch(Rectangle((left + index, rank + 0.04), CELL, CELL, **style))
        text = "" if number == 0 else f"{number:g}"
        back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if source is None and text else None
        axes.text(
            left + index + CELL / 2,
            rank + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            bbox=back,
        )


def _owners(before: Sequence[Holding]) -> dict[float, int]:
    """Number -> the one rank that held it at first."""
    return {number: rank for rank, held in enumerate(before) for number in held}


def _in_words(results: Sequence[Mapping[str, tuple[Holding, Holding]]]) -> str:
    told = []
    for name in results[0]:
        after = [f"rank {rank} {[round(v, 6) for v in held[name][1]]}" for rank, held in enumerate(results)]
        told.append(f"after {name.replace('_', '-')}: {', '.join(after)}")
    return "What each rank holds. " + "; ".join(told) + "."
