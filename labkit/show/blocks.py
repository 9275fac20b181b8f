"""Matrices as blocks: who holds which part of a product that is split over ranks."""

from __future__ import annotations

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.show.style import (
    BLUE,
    GREEN,
    INK,
    PALE,
    VERMILION,
    Picture,
    drawing_board,
    new_figure,
    rank_color,
)

TOKENS, HIDDEN, INNER = 1.5, 2.0, 4.0  # drawn heights and widths: b*s rows, h, and 4h
SUBSCRIPTS = "₀₁₂₃"


def draw_matmul_split(cut: Literal["columns", "rows"], ranks: int = 2) -> Picture:
    """Draw Y = X A with A cut by columns or by rows over 2 to 4 ranks, one colour a rank.

    ValueError for another cut, or a number of ranks whose blocks would not carry a label.
    """
    if not 2 <= ranks <= 4:
        raise ValueError(f"the blocks can be drawn for 2 to 4 ranks, got {ranks}")
    if cut not in ("columns", "rows"):
        raise ValueError(f"cut is 'columns' or 'rows', got {cut!r}")
    figure, (axes,) = new_figure(height=2.0 if cut == "columns" else 2.8)
    drawing_board(axes)
    (_draw_columns if cut == "columns" else _draw_rows)(axes, ranks)
    needs = "slices, joined by an all-gather" if cut == "columns" else "partial sums, added by an all-reduce"
    return Picture(
        figure, f"X times A with A cut by {cut} over {ranks} ranks: each rank's results are {needs}."
    )


def _draw_columns(axes: Axes, ranks: int) -> None:
    middle = HIDDEN / 2
    _block(axes, 0, middle - TOKENS / 2, HIDDEN, TOKENS, PALE, "X")
    _caption(axes, HIDDEN / 2, middle - TOKENS / 2, "[b·s, h]\nevery rank has all of it")
    _sign(axes, HIDDEN + 0.35, middle, "·")
    left = HIDDEN + 0.7
    _row_of_blocks(axes, left, 0, INNER, HIDDEN, ranks, "A")
    _caption(axes, left + INNER / 2, 0, "[h, 4h], cut by columns")
    _sign(axes, left + INNER + 0.35, middle, "=")
    right = left + INNER + 0.7
    _row_of_blocks(axes, right, middle - TOKENS / 2, INNER, TOKENS, ranks, "XA")
    _caption(axes, right + INNER / 2, middle - TOKENS / 2, "each rank has a slice of Y")
    _limits(axes, right + INNER, -0.8, HIDDEN)


def _draw_rows(axes: Axes, ranks: int) -> None:
    middle = INNER / 2
    bottom = middle - TOKENS / 2
    _row_of_blocks(axes, 0, bottom, INNER, TOKENS, ranks, "X")
    _caption(axes, INNER / 2, bottom, "[b·s, 4h], cut by columns")
    _sign(axes, INNER + 0.35, middle, "·")
    left = INNER + 0.7
    for rank in range(ranks):
        height = INNER / ranks
        top = INNER - rank * height
        _block(axes, left, top - height, HIDDEN, height, rank_color(rank), f"A{SUBSCRIPTS[rank]}")
    _caption(axes, left + HIDDEN / 2, 0, "[4h, h], cut by rows")
    position = left + HIDDEN
    for rank in range(ranks):
        _sign(axes, position + 0.35, middle, "=" if rank == 0 else "+")
        label = f"X{SUBSCRIPTS[rank]}A{SUBSCRIPTS[rank]}"
        _block(axes, position + 0.7, bottom, HIDDEN, TOKENS, rank_color(rank), label)
        position += 0.7 + HIDDEN
    _caption(axes, (left + HIDDEN + 0.7 + position) / 2, bottom, "each rank has a partial sum as large as Y")
    _limits(axes, position, -0.5, INNER)


def _row_of_blocks(
    axes: Axes, left: float, bottom: float, width: float, height: float, ranks: int, name: str
) -> None:
    for rank in range(ranks):
        label = f"{name}{SUBSCRIPTS[rank]}"
        _block(axes, left + rank * width / ranks, bottom, width / ranks, height, rank_color(rank), label)


def draw_parallel_mlp(ranks: int = 2, show_backward: bool = False) -> Picture:
    """Draw the split MLP, one lane a rank, with f in front and g behind, for 2 to 4 ranks.

    show_backward: also draw the way of the gradients, and what f and g do in each direction.
    """
    if not 2 <= ranks <= 4:
        raise ValueError(f"the lanes can be drawn for 2 to 4 ranks, got {ranks}")
    figure, (axes,) = new_figure(height=0.1 + 0.74 * ranks + 0.7 * show_backward)
    drawing_board(axes)
    top = 1.5 * ranks
    for rank in range(ranks):
        _lane(axes, rank, top - 1.5 * rank - 0.75, show_backward)
    for x, name, forward, backward in ((3.0, "f", "same", "all-reduce"), (11.2, "g", "all-reduce", "same")):
        axes.add_patch(
            Rectangle((x, 0.1), 0.8, top - 0.2, facecolor=GREEN, edgecolor=INK, alpha=0.85, zorder=3)
        )
        axes.text(x + 0.4, top / 2, name, ha="center", va="center", fontsize=14, style="italic", zorder=4)
        if show_backward:
            axes.text(x + 0.4, top + 0.2, forward, ha="center", va="bottom", fontsize=9, color=BLUE)
            axes.text(x + 0.4, -0.1, backward, ha="center", va="top", fontsize=9, color=VERMILION)
    if show_backward:
        axes.text(-1.2, top + 0.2, "forward: values", ha="left", va="bottom", fontsize=9, color=BLUE)
        axes.text(-1.2, -0.1, "backward: gradients", ha="left", va="top", fontsize=9, color=VERMILION)
    axes.set_xlim(-1.2, 14.6)
    axes.set_ylim(-0.6 if show_backward else 0, top + (0.7 if show_backward else 0.1))
    ways = " Gradients flow back, summed in f." if show_backward else ""
    return Picture(
        figure,
        f"The MLP on {ranks} ranks: X goes through f to every rank; rank i multiplies by its columns of A, "
        f"applies GeLU, multiplies by its rows of B; g adds the results to Z.{ways}",
    )


def _lane(axes: Axes, rank: int, y: float, show_backward: bool) -> None:
    """X -> A_i -> GeLU -> B_i -> Z on one rank, at height `y`."""
    color, index = rank_color(rank), SUBSCRIPTS[rank]
    axes.text(-0.2, y, f"rank {rank}", ha="right", va="center", fontsize=9, color=INK)
    _block(axes, 0, y - 0.4, 1.9, 0.8, PALE, "X")
    _block(axes, 4.8, y - 0.55, 0.9, 1.1, color, f"A{index}")
    _block(axes, 6.7, y - 0.35, 1.5, 0.7, "white", "GeLU")
    _block(axes, 9.2, y - 0.35, 1.1, 0.7, color, f"B{index}")
    _block(axes, 13.0, y - 0.4, 1.5, 0.8, PALE, "Z")
    for start, end in ((1.9, 3.0), (3.8, 4.8), (5.7, 6.7), (8.2, 9.2), (10.3, 11.2), (12.0, 13.0)):
        shift = 0.13 if show_backward else 0.0
        _arrow(axes, start, end, y + shift, BLUE)
        if show_backward:
            _arrow(axes, end, start, y - shift, VERMILION)


def _arrow(axes: Axes, start: float, end: float, y: float, color: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (start, y), (end, y), arrowstyle="-|>", mutation_scale=9, color=color, shrinkA=1, shrinkB=1
        )
    )


def _block(axes: Axes, x: float, y: float, width: float, height: float, color: str, label: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=INK, linewidth=1.0))
    axes.text(x + width / 2, y + height / 2, label, ha="center", va="center", fontsize=11, color=INK)


def _sign(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=15, color=INK)


def _caption(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y - 0.12, text, ha="center", va="top", fontsize=9, color=INK)


def _limits(axes: Axes, right: float, bottom: float, top: float) -> None:
    axes.set_xlim(-0.1, right + 0.1)
    axes.set_ylim(bottom, top + 0.1)
