"""Where each layer of a model lives: one bar a device, one block a layer, against the device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.show.style import GREY, INK, PURPLE, SKY, VERMILION, YELLOW, Picture, expect_some, new_figure
from labkit.theory.units import binary_text

MIB = 2**20
BAR = 0.62
LABEL = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5}
SHAPES = {"embedding": (YELLOW, "\\\\"), "block": (SKY, ""), "head": (PURPLE, "xx"), "other": (GREY, "")}


def draw_placement(
    cuts: Mapping[str, Sequence[Sequence[int]]],
    costs: Sequence[float],
    kinds: Sequence[str],
    capacity: float | None = None,
) -> Picture:
    """Draw one or several ways to put layers on devices, one panel each.

    cuts: title -> for each device, the numbers of its layers. costs: bytes of each layer. kinds: "embedding",
    "block" or "head" for each layer. capacity: bytes of a device, drawn as a line.
    ValueError for a layer that is not there.
    """
    for parts in (cuts, *cuts.values()):
        expect_some(parts, "device")
    _check_layers(cuts, len(costs))
    rows = max(len(parts) for parts in cuts.values())
    figure, panels = new_figure(height=1.3 + 0.5 * rows, columns=len(cuts), sharey=True)
    most = max(sum(costs[i] for i in part) for parts in cuts.values() for part in parts)
    reach = max(most, capacity or 0) * 1.04 / MIB
    for axes, (title, parts) in zip(panels, cuts.items(), strict=True):
        _draw_panel(axes, parts, costs, kinds)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xlim(0, reach)
        if capacity is not None:
            axes.axvline(capacity / MIB, color=VERMILION, linestyle="--", linewidth=1.2)
            axes.text(capacity / MIB, -0.62, "full ", color=VERMILION, fontsize=8, ha="right", va="center")
        axes.set_xlabel("weights on the device (MiB)", fontsize=9)
    panels[0].set_yticks(range(rows), [f"cuda:{index}" for index in range(rows)])
    panels[0].set_ylim(rows - 0.4, -0.85)
    figure.legend(handles=_legend(kinds), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return Picture(figure, _in_words(cuts, costs))


def _check_layers(cuts: Mapping[str, Sequence[Sequence[int]]], number: int) -> None:
    for title, parts in cuts.items():
        for device, part in enumerate(parts):
            wrong = [layer for layer in part if layer not in range(number)]
            if wrong:
                raise ValueError(
                    f"{title}, cuda:{device}: expected layers of 0 to {number - 1}, found {wrong[0]}"
                )


def _draw_panel(
    axes: Axes, parts: Sequence[Sequence[int]], costs: Sequence[float], kinds: Sequence[str]
) -> None:
    for device, part in enumerate(parts):
        left = 0.0
        for layer in part:
            colour, hatch = SHAPES.get(kinds[layer], SHAPES["other"])
            width = costs[layer] / MIB
            axes.barh(device, width, BAR, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)
            left += width
        if part:
            axes.text(0.03 * left, device, _named(part), va="center", fontsize=8, color=INK, bbox=LABEL)


def _named(part: Sequence[int]) -> str:
    """A run of layers by its ends; others, which a cut that is not right has, one by one."""
    if len(part) == 1:
        return f"layer {part[0]}"
    run = list(part) == list(range(part[0], part[-1] + 1))
    return f"layers {part[0]}-{part[-1]}" if run else f"layers {', '.join(map(str, part))}"


def _legend(kinds: Sequence[str]) -> list[Patch]:
    return [
        Patch(facecolor=SHAPES[kind][0], hatch=SHAPES[kind][1], edgecolor="white", label=kind)
        for kind in dict.fromkeys(kind if kind in SHAPES else "other" for kind in kinds)
    ]


def _in_words(cuts: Mapping[str, Sequence[Sequence[int]]], costs: Sequence[float]) -> str:
    sentences = []
    for title, parts in cuts.items():
        sizes = [binary_text(sum(costs[i] for i in part)) for part in parts]
        sentences.append(f"{title}: " + ", ".join(f"cuda:{k} {size}" for k, size in enumerate(sizes)))
    return "Weights on each device. " + "; ".join(sentences) + "."
