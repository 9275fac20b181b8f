"""Grids of ranks over nodes, the terms of a step, and bandwidth over the number of nodes, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    KINDS,
    ORANGE,
    PURPLE,
    VERMILION,
    Picture,
    drawing_board,
    expect_some,
    new_figure,
    rank_color,
)

TERMS = {"compute": KINDS["compute"], "tensor": GREEN, "bubble": GREY, "data": ORANGE}
HATCHES = {"tensor": "///", "bubble": "..", "data": "xx"}
LINES = ((BLUE, "o", "-"), (VERMILION, "s", "--"), (PURPLE, "^", ":"), (GREEN, "D", "-."))


def draw_groups(groups: Mapping[str, Sequence[Sequence[int]]], gpus_per_node: int) -> Picture:
    """Ranks in their nodes, one panel an axis; the ranks of one group have one colour and one letter.

    groups: axis -> the groups of ranks along it.
    """
    expect_some(groups, "axis")
    ranks = sum(len(members) for members in next(iter(groups.values())))
    nodes = -(-ranks // gpus_per_node)
    figure, panels = new_figure(height=0.55 * nodes + 0.7, columns=len(groups))
    for axes, (axis, of_axis) in zip(panels, groups.items(), strict=True):
        _draw_nodes(axes, nodes, gpus_per_node)
        for number, members in enumerate(of_axis):
            for rank in members:
                _draw_rank(axes, rank, gpus_per_node, number)
        axes.set_title(f"groups along {axis}", fontsize=10, color=INK)
    told = "; ".join(f"along {axis}: {[list(m) for m in of_axis]}" for axis, of_axis in groups.items())
    on = f"{nodes} {'node' if nodes == 1 else 'nodes'} of {gpus_per_node}"
    return Picture(figure, f"{ranks} ranks on {on}. Groups {told}.")


def _draw_nodes(axes: Axes, nodes: int, width: int) -> None:
    drawing_board(axes)
    axes.set_aspect("auto")
    for node in range(nodes):
        axes.add_patch(Rectangle((-0.08, node + 0.06), width + 0.06, 0.88, fill=False, edgecolor=INK))
    axes.set_xlim(-0.2, width + 0.1)
    axes.set_ylim(nodes + 0.1, -0.1)


def _draw_rank(axes: Axes, rank: int, width: int, group: int) -> None:
    x, y = rank % width, rank // width
    axes.add_patch(Rectangle((x, y + 0.14), 0.9, 0.72, facecolor=rank_color(group), edgecolor="white"))
    label = f"{rank}\n{chr(ord('A') + group % 26)}"
    axes.text(x + 0.45, y + 0.5, label, ha="center", va="center", fontsize=7, color=INK)


def draw_terms(steps: Mapping[str, Mapping[str, float]]) -> Picture:
    """Seconds of a step by term, one bar a plan. steps: label -> term -> seconds.

    ValueError for a plan without one of the terms.
    """
    expect_some(steps, "plan")
    for plan, found in steps.items():
        if not isinstance(found, Mapping) or not set(TERMS) <= set(found):
            raise ValueError(f"{plan}: expected seconds of {', '.join(TERMS)} by name, found {found!r}")
    figure, (axes,) = new_figure(height=0.8 + 0.42 * len(steps))
    for row, terms in enumerate(steps.values()):
        left = 0.0
        for term, colour in TERMS.items():
            label = term if row == 0 else None
            hatch = HATCHES.get(term, "")
            axes.barh(row, terms[term], 0.66, left, color=colour, hatch=hatch, edgecolor="white", label=label)
            left += terms[term]
        axes.text(left, row, f" {left:.3g} s", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(steps)), list(steps), fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("seconds of a step", fontsize=9)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    told = "; ".join(
        f"{label}: {', '.join(f'{term} {seconds:.3g} s' for term, seconds in terms.items())}"
        for label, terms in steps.items()
    )
    return Picture(figure, told)


def draw_over_nodes(
    lines: Mapping[str, Sequence[float]], nodes: Sequence[int], unit: str = "GB/s"
) -> Picture:
    """Something measured on several numbers of nodes, one line each, both axes logarithmic."""
    expect_some(lines, "line")
    figure, (axes,) = new_figure(height=3.0)
    for (label, values), (colour, mark, style) in zip(lines.items(), cycle(LINES)):
        axes.plot(
            nodes[: len(values)],
            values,
            color=colour,
            marker=mark,
            linestyle=style,
            label=label,
            markersize=5,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(nodes, [str(n) for n in nodes])
    for write in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        write(lambda value, _: f"{value:,.0f}" if f"{value:.0e}"[0] in "12345" else "")
    axes.set_xlabel("nodes", fontsize=9)
    axes.set_ylabel(unit, fontsize=9)
    axes.grid(True, which="both", color="#DDDDDD", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    told = [f"{label}: {', '.join(f'{value:,.0f}' for value in values)}" for label, values in lines.items()]
    return Picture(figure, f"{unit} on {', '.join(map(str, nodes))} nodes. " + "; ".join(told) + ".")
