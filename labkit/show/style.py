"""How every figure of the course looks: one palette, one size, one way to be shown.

The colours are those of Okabe and Ito (2008), made for people with the common kinds of colour blindness.
The same thing has the same colour in every lesson. No figure relies on colour alone: blocks carry names, and
kinds that could be confused carry a hatch, so a black-and-white print can be read too. Figures are drawn on
white; on a dark page of JupyterLab `templates/theme.css` turns light and dark round and keeps the hues.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.show.html import render

BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
ORANGE: Final = "#E69F00"
VERMILION: Final = "#C44F00"  # a little darker than theirs: letters in it, and white ones on it, can be read
PURPLE: Final = "#CC79A7"
GREY: Final = "#BBBBBB"
PALE: Final = "#DDDDDD"
INK: Final = "#000000"

ENOUGH: Final = 4.5
"""The least contrast of text (WCAG 2.2, 1.4.3)."""

PAPER: Final[Mapping[str, Any]] = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
"""What is laid under letters on a hatched block, as `bbox` of `Axes.text`."""

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


def contrast(one: Any, other: Any) -> float:
    """How well one colour stands out from another: 1 to 21 (WCAG 2.2, "contrast ratio")."""
    dark, light = sorted([_luminance(one), _luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def lettering(color: Any) -> dict[str, Any]:
    """How letters look on a block of that colour, as arguments of `Axes.text`: white or black, and on paper
    where neither could be read.

    A dark page turns light and dark round, where black letters, white then, stand out half as much.
    """
    if contrast("white", color) >= ENOUGH:
        return {"color": "white"}
    if contrast(INK, color) >= 2 * ENOUGH:
        return {"color": INK}
    return {"color": INK, "bbox": PAPER}


def _luminance(color: Any) -> float:
    """Of a colour as matplotlib takes it: the relative luminance of WCAG 2.2, 0 to 1."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


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


def expect_some(things: Sized, what: str) -> None:
    """ValueError where there is nothing to draw. what: one of the things."""
    if not len(things):
        raise ValueError(f"expected at least one {what} to draw, found none")


def mark_guess(axes: Axes, milliseconds: float) -> bool:
    """A dashed line at a guess on the x axis, whose limits are set, or a word above it where the guess is
    beyond them. Whether it is a line.
    """
    low, high = axes.get_xlim()
    if low <= milliseconds <= high:
        axes.axvline(milliseconds, color=VERMILION, linestyle="--", linewidth=1.2)
        return True
    told = f"your guess: {milliseconds:,g} ms"
    told = f"← {told}" if milliseconds < low else f"{told} →"
    axes.set_title(told, loc="right", fontsize=8, color=VERMILION)
    return False


def drawing_board(axes: Axes) -> None:
    """Turn a plot into a plain sheet for shapes: no axes, equal scales."""
    axes.set_axis_off()
    axes.set_aspect("equal")


@dataclass(frozen=True)
class Picture:
    """A drawn figure and a sentence that says what it shows, for readers who cannot see it."""

    figure: Figure
    alt: str

    def __post_init__(self) -> None:
        """A name is the user's, and a dollar in it begins no formula. (Ticks have no text yet.)"""
        for text in self.figure.findobj(Text):
            if isinstance(text, Text) and "$" in text.get_text():
                text.set_parse_math(False)

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
