"""How every figure of the course looks: one palette, one size, one way to be shown.

The colours are those of Okabe and Ito (2008), made for people with the common kinds of colour blindness.
The same thing has the same colour in every lesson. No figure relies on colour alone: blocks carry names, and
kinds that could be confused carry a hatch, so a black-and-white print can be read too.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.html import render

BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
ORANGE: Final = "#E69F00"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#BBBBBB"
PALE: Final = "#EEEEEE"
INK: Final = "#222222"

KINDS: Final[Mapping[str, str]] = {
    "forward": BLUE,
    "backward": VERMILION,
    "communication": GREEN,
    "compute": SKY,
    "optimizer": PURPLE,
    "idle": PALE,
}
"""What a rank is doing at a moment, for timelines and schedules."""

HATCHES: Final[Mapping[str, str]] = {"communication": "///", "backward": "..", "optimizer": "xx"}
"""A second mark, for print and for eyes that do not tell the colours apart."""

STATES: Final[Mapping[str, str]] = {
    "weights": SKY,
    "gradients": ORANGE,
    "optimizer": PURPLE,
    "activations": GREEN,
    "free": PALE,
}
"""What memory is filled with, for memory bars and calculators."""

RANKS: Final = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")
"""One light colour a rank, for blocks that carry a text (Paul Tol's light scheme). Rank 8 starts again."""

NOTEBOOK_WIDTH: Final = 8.0
"""Inches: what a notebook column shows without scrolling, and a page prints without shrinking."""


def kind_color(kind: str) -> str:
    """The colour of a kind of work ("forward", "communication", ...); grey for a kind that has none."""
    return KINDS.get(kind, GREY)


def rank_color(rank: int) -> str:
    """The colour of a rank's block."""
    return RANKS[rank % len(RANKS)]


def new_figure(
    height: float, width: float = NOTEBOOK_WIDTH, columns: int = 1, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` inches with `columns` plots side by side.

    It is made without pyplot: nothing global keeps it, and it is shown only where a cell returns it.
    """
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, **grid)[0]
    for plot in axes:
        plot.spines[["top", "right"]].set_visible(False)
        plot.tick_params(colors=INK, labelsize=9)
    return figure, list(axes)


def drawing_board(axes: Axes) -> None:
    """Turn a plot into a plain sheet for shapes: no axes, equal scales."""
    axes.set_axis_off()
    axes.set_aspect("equal")


@dataclass(frozen=True)
class Picture:
    """A drawn figure and a sentence that says what it shows, for readers who cannot see it."""

    figure: Figure
    alt: str

    def png(self, dpi: int = 150) -> bytes:
        """The picture as PNG bytes."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=dpi)
        return buffer.getvalue()

    def save(self, path: str) -> None:
        """Write the picture to a file; the ending of `path` chooses the format."""
        self.figure.savefig(path, dpi=150)

    def _repr_html_(self) -> str:
        width = round(self.figure.get_figwidth() * 100)
        return render("picture", alt=self.alt, png=base64.b64encode(self.png()).decode(), width=width)

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"
