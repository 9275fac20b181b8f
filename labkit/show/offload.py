"""Peak memory of a device against the number of layers that stay on it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from types import EllipsisType

from matplotlib.ticker import MaxNLocator

from labkit.show.style import BLUE, GREY, INK, ORANGE, VERMILION, Picture, expect_some, new_figure
from labkit.theory.units import binary_text

MIB = 2**20
TALLEST = 3  # of what was measured: a guess above that is told and not drawn
LINES = ((BLUE, "o", "-"), (ORANGE, "s", "-"))


def draw_resident_peaks(
    peaks: Mapping[str, Mapping[int, float]],
    whole: float | None = None,
    guess: tuple[int, float | EllipsisType] | None = None,
) -> Picture:
    """Draw measured peaks in bytes: for each title, number of resident layers -> peak.

    whole: bytes of the plain model on the device, drawn as a line. guess: (resident layers, predicted bytes).
    """
    expect_some(peaks, "title")
    for measured in peaks.values():
        expect_some(measured, "peak")
    figure, (axes,) = new_figure(height=3.2)
    for (title, points), (colour, marker, line) in zip(peaks.items(), cycle(LINES)):
        axes.plot(
            list(points),
            [peak / MIB for peak in points.values()],
            line,
            color=colour,
            marker=marker,
            label=title,
        )
    if whole is not None:
        axes.axhline(whole / MIB, color=GREY, linestyle="--", linewidth=1.2)
        axes.text(
            0, whole / MIB, "all weights and gradients on the device", fontsize=8, color=INK, va="bottom"
        )
    if guess is not None and not isinstance(guess[1], EllipsisType):
        most = max(whole or 0.0, *(peak for points in peaks.values() for peak in points.values()))
        if guess[1] <= TALLEST * most:
            axes.plot([guess[0]], [guess[1] / MIB], "X", color=VERMILION, markersize=9, label="your guess")
        else:  # drawn, it would press all that was measured flat
            beyond = f"your guess: {guess[1] / MIB:,g} MiB ↑"
            axes.set_title(beyond, loc="right", fontsize=8, color=VERMILION)
    axes.set_xlabel("layers that stay on the device", fontsize=9)
    axes.set_ylabel("peak (MiB)", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    told = [
        f"{title}: {binary_text(min(points.values()))} with {min(points)} resident, "
        f"{binary_text(max(points.values()))} with {max(points)}"
        for title, points in peaks.items()
    ]
    return Picture(figure, "Peak device memory. " + "; ".join(told) + ".")
