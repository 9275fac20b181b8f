"""Figures of recomputation: bytes over the course of a step, and the peak against the number of segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from labkit.show.style import BLUE, GREEN, GREY, INK, VERMILION, Picture, expect_some, new_figure
from labkit.theory.units import binary_text

MIB, GIB = 2**20, 2**30
_COLORS = (VERMILION, BLUE, GREEN, INK)
_LINES = ("-", "--", "-.", ":")


def draw_held(
    histories: Mapping[str, Sequence[int]], turns: Mapping[str, int], counted: str = "operations so far"
) -> Picture:
    """Bytes alive after each operation of a training step, one curve a plan.

    histories: plan -> bytes after each operation. turns: plan -> how many were over when backward began.
    counted: what a step along the axis is.
    """
    for held in (histories, *histories.values()):
        expect_some(held, "operation")
    figure, (axes,) = new_figure(3.2)
    most = max(max(held) for held in histories.values())
    unit, name_of_unit = (GIB, "GiB") if most >= 4 * GIB else (MIB, "MiB")
    for (name, held), color, line in zip(histories.items(), cycle(_COLORS), cycle(_LINES)):
        so_far = range(1, len(held) + 1)  # as many are over at a point of the curve
        axes.plot(so_far, [b / unit for b in held], color=color, linestyle=line, linewidth=1.8, label=name)
        axes.plot(turns[name], held[turns[name] - 1] / unit, "o", color=color, markersize=6)
    axes.set(
        xlabel=f"{counted} (the dot: backward begins)",
        ylabel=f"tensors alive, {name_of_unit}",
        ylim=(0, None),
    )
    axes.legend(frameon=False, fontsize=9)
    peaks = "; ".join(f"{name}: at most {binary_text(max(held))}" for name, held in histories.items())
    return Picture(figure, f"Bytes alive during one training step. {peaks}.")


def draw_peaks(
    measured: Mapping[int, int], predicted: Mapping[int, int], *, layers: int, guess: object = ...
) -> Picture:
    """Peak bytes against the number of segments: your formula as a line, your measurements as points.

    guess: the number of segments you expected to be best; `...` when there is none yet.
    """
    expect_some(measured, "measurement")
    figure, (axes,) = new_figure(3.4)
    axes.plot(
        list(predicted), [b / MIB for b in predicted.values()], color=GREY, linewidth=3, label="your formula"
    )
    axes.plot(
        list(measured), [b / MIB for b in measured.values()], "o", color=BLUE, markersize=5, label="measured"
    )
    axes.axvline(layers**0.5, color=INK, linestyle=":", linewidth=1, label=f"square root of {layers}")
    if isinstance(guess, (int, float)) and guess > 0:  # the axis is logarithmic
        axes.axvline(guess, color=VERMILION, linestyle="--", linewidth=1, label="your guess")
    axes.set(
        xlabel=f"segments of a chain of {layers} layers", ylabel="peak of activations, MiB", ylim=(0, None)
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(measured), [str(k) for k in measured])
    axes.legend(frameon=False, fontsize=9)
    best = min(measured, key=measured.__getitem__)
    return Picture(
        figure,
        f"Peak bytes by number of segments; the lowest measured is {binary_text(measured[best])} at {best}.",
    )


def draw_growth(peaks: Mapping[str, Mapping[int, int]], sqrt_of: str) -> Picture:
    """Peak bytes against the number of layers, one curve a plan, with c * sqrt(n) through the last point of
    `sqrt_of`.
    """
    expect_some(peaks[sqrt_of], "number of layers")
    figure, (axes,) = new_figure(3.4)
    for (name, points), color, line in zip(peaks.items(), cycle(_COLORS), cycle(_LINES)):
        axes.plot(
            list(points), [b / MIB for b in points.values()], "o", linestyle=line, color=color, label=name
        )
    layers = list(peaks[sqrt_of])
    scale = peaks[sqrt_of][layers[-1]] / layers[-1] ** 0.5 / MIB
    axes.plot(
        layers,
        [scale * n**0.5 for n in layers],
        color=GREY,
        linewidth=4,
        zorder=0,
        label="c times the square root of n",
    )
    axes.set(xlabel="layers n", ylabel="peak of activations, MiB", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    ends = "; ".join(f"{name}: {binary_text(points[layers[-1]])}" for name, points in peaks.items())
    return Picture(figure, f"Peak bytes against the number of layers, up to {layers[-1]}. {ends}.")
