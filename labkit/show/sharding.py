"""What a tensor-parallel model looks like: its regions, who holds what, what it sends, keeps, and learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from labkit.record import Collective
from labkit.record.exchange import leaving_bytes
from labkit.show.style import (
    BLUE,
    GREEN,
    INK,
    PALE,
    PAPER,
    VERMILION,
    Picture,
    drawing_board,
    expect_some,
    kind_color,
    new_figure,
    rank_color,
)

REGIONS = (
    ("norm", "whole"),
    ("f", "wall"),
    ("heads", "cut"),
    ("g", "wall"),
    ("dropout\n+ x", "whole"),
    ("norm", "whole"),
    ("f", "wall"),
    ("MLP", "cut"),
    ("g", "wall"),
    ("dropout\n+ x", "whole"),
)
WIDTHS = {"whole": 1.7, "cut": 2.1, "wall": 0.75}
INSIDE = {"heads": "[b, a/t, s, d]", "MLP": "[b, s, 4h/t]"}  # shapes of what a rank has in a cut region


def draw_block(ranks: int = 4, sequence_parallel: bool = False) -> Picture:
    """One transformer block, one lane a rank: what is whole on every rank, what is cut, where ranks meet.
    Below, the shape of what a rank has there.

    sequence_parallel: the tokens outside the cut regions are divided too; then f is a gather, g a scatter.
    """
    figure, (axes,) = new_figure(height=0.35 + 0.47 * ranks)
    drawing_board(axes)
    left = 0.0
    for name, kind in REGIONS:
        width = WIDTHS[kind]
        if kind == "wall":
            _wall(axes, left, width, ranks, name, sequence_parallel)
        else:
            for rank in range(ranks):
                whole = kind == "whole" and not sequence_parallel
                _region(axes, left, ranks - 1 - rank, width, name, PALE if whole else rank_color(rank))
            shape = INSIDE.get(name, "[b, s/t, h]" if sequence_parallel else "[b, s, h]")
            axes.text(left + width / 2, -0.02, shape, ha="center", va="top", fontsize=7.5, color=INK)
        left += width + 0.18
    for rank in range(ranks):
        text = f"rank {rank}"
        axes.text(-0.2, ranks - 1 - rank + 0.45, text, ha="right", va="center", fontsize=9, color=INK)
    axes.set_xlim(-1.6, left)
    axes.set_ylim(-0.5, ranks + 0.1)
    if sequence_parallel:
        told = (
            "Each rank normalises and drops its own tokens; tokens are gathered before attention and before"
        )
        alt = f"{told} the MLP, and scattered behind them, on {ranks} ranks."
    else:
        told = "Norms, dropout and residuals are whole on every rank; heads and the MLP's features are cut"
        alt = f"{told} over {ranks} ranks, between f and g."
    return Picture(figure, alt)


def _region(axes: Axes, x: float, y: float, width: float, name: str, color: str) -> None:
    axes.add_patch(Rectangle((x, y + 0.06), width, 0.8, facecolor=color, edgecolor=INK, linewidth=0.8))
    axes.text(x + width / 2, y + 0.46, name, ha="center", va="center", fontsize=8, color=INK)


def _wall(axes: Axes, x: float, width: float, ranks: int, name: str, divided: bool) -> None:
    axes.add_patch(Rectangle((x, 0), width, ranks, facecolor=GREEN, edgecolor=INK, alpha=0.85))
    middle = x + width / 2
    if divided:
        text = {"f": "gather", "g": "scatter"}[name]
        axes.text(middle, ranks / 2, text, ha="center", va="center", fontsize=9, rotation=90)
    else:
        axes.text(middle, ranks / 2, name, ha="center", va="center", fontsize=13, style="italic")


def rows_held(block: Tensor, whole: Tensor, rows: int = 1) -> list[int]:
    """Which groups of `rows` rows of `whole` are in `block`, in the order they stand there.

    -1 for one that is nowhere in `whole`, such as padding. rows: the head size, to find heads.
    """
    groups = [part.reshape(-1) for part in whole.split(rows)]
    found = []
    for part in block.split(rows):
        flat = part.reshape(-1)
        same = (
            n for n, group in enumerate(groups) if group.shape == flat.shape and bool((group == flat).all())
        )
        found.append(next(same, -1))
    return found


def draw_holdings(held: Mapping[str, Sequence[Sequence[int]]], total: Mapping[str, int]) -> Picture:
    """Who holds which heads and rows. held: name -> for each rank the numbers it has; total: of how many.

    A number that no rank holds stays white, one that several hold is black: neither should be seen.
    """
    expect_some(held, "row")
    figure, (axes,) = new_figure(height=0.7 + 0.42 * len(held))
    for line, (name, by_rank) in enumerate(held.items()):
        width = 1 / total[name]
        owners: dict[int, list[int]] = {}
        for rank, numbers in enumerate(by_rank):
            for number in numbers:
                owners.setdefault(number, []).append(rank)
        for number in range(total[name]):
            own = owners.get(number, [])
            color = "white" if not own else INK if len(own) > 1 else rank_color(own[0])
            box = Rectangle((number * width, line - 0.36), width, 0.72, facecolor=color, edgecolor="white")
            axes.add_patch(box)
            if total[name] <= 24:
                axes.text((number + 0.5) * width, line, str(number), ha="center", va="center", fontsize=8)
    ranks = max(len(by_rank) for by_rank in held.values())
    handles = [Rectangle((0, 0), 1, 1, facecolor=rank_color(r), label=f"rank {r}") for r in range(ranks)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(ranks, 8), frameon=False, fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(held) - 0.5, -0.5)
    axes.set_yticks(range(len(held)), list(held))
    axes.set_xticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    words = "; ".join(f"{name}: " + ", ".join(map(_span, by_rank)) for name, by_rank in held.items())
    return Picture(figure, f"Held by rank 0, 1, ... in order. {words}.")


def _span(numbers: Sequence[int]) -> str:
    real = [n for n in numbers if n >= 0]
    return f"{min(real)} to {max(real)}" if real else "none"


def sent_bytes(call: Collective) -> float:
    """What a rank sends: 2(n-1)/n of the bytes of an all-reduce in a ring, (n-1)/n of a scatter or
    all-to-all, n-1 times those of a gather, none of a recv. Where it is known what an all-to-all sends to
    whom, that, without its own part.
    """
    if call.sent:
        return leaving_bytes(call.rank, call.group, call.sent)
    n = len(call.group)
    share = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1.0, "recv": 0.0}
    share |= dict.fromkeys(("reduce_scatter", "all_to_all"), (n - 1) / n)
    return share.get(call.op, 1.0) * call.num_bytes


SENT_HATCHES = {"all_reduce": "", "all_gather": "...", "reduce_scatter": "\\\\\\"}
SENT_NAMES = {"all_reduce": "all-reduce", "all_gather": "gather", "reduce_scatter": "scatter"}


def draw_sent(
    sent: Mapping[str, Mapping[str, Mapping[str, float]]], formulas: Mapping[str, Mapping[str, float]]
) -> Picture:
    """What a rank sends for one block: name -> phase ("forward", ...) -> operation -> bytes.

    formulas: name -> what a dashed line is called -> bytes.
    """
    expect_some(sent, "plan")
    figure, (axes,) = new_figure(height=1.2 + 0.6 * len(sent))
    totals = {name: sum(sum(ops.values()) for ops in phases.values()) for name, phases in sent.items()}
    for line, (name, phases) in enumerate(sent.items()):
        left = 0.0
        for phase, operations in phases.items():
            for operation, num_bytes in sorted(operations.items(), key=lambda item: -item[1]):
                _sent_piece(axes, line, left, phase, operation, num_bytes, 0.07 * max(totals.values()))
                left += num_bytes
        for told, mark in formulas[name].items():
            axes.plot([mark, mark], [line - 0.42, line + 0.34], color=INK, linewidth=1.8, linestyle="--")
            axes.text(mark, line - 0.44, told, ha="center", va="bottom", fontsize=8, color=INK)
    axes.set_yticks(range(len(sent)), list(sent))
    axes.set_ylim(len(sent) - 0.5, -0.75)
    axes.set_xlabel("bytes sent by a rank for one block, in a ring; dashed: formulas", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g} kB")
    phases_seen = list(dict.fromkeys(phase for phases in sent.values() for phase in phases))
    handles = [Rectangle((0, 0), 1, 1, facecolor=kind_color(p), label=p) for p in phases_seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    words = (
        f"{name}: {totals[name]:,.0f}, formulas " + ", ".join(f"{told} {n:,.0f}" for told, n in marks.items())
        for name, marks in formulas.items()
    )
    return Picture(figure, f"Bytes a rank sends for one block. {'; '.join(words)}.")


def _sent_piece(
    axes: Axes, line: int, left: float, phase: str, operation: str, num_bytes: float, room: float
) -> None:
    hatch = SENT_HATCHES.get(operation, "xx")
    axes.barh(line, num_bytes, 0.6, left, color=kind_color(phase), edgecolor="white", hatch=hatch)
    if num_bytes > room:
        text = SENT_NAMES.get(operation, operation)
        axes.text(left + num_bytes / 2, line, text, ha="center", va="center", fontsize=8, bbox=PAPER)


def draw_memory(
    predicted: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    unit: str,
) -> Picture:
    """Memory of a rank against t: predicted lines, measured points of the same colour and name."""
    figure, (axes,) = new_figure(height=3.2, width=6.5)
    styles = ((BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, ":", "^"), (INK, "-.", "d"))
    for (name, (degrees, values)), (color, line, _) in zip(predicted.items(), cycle(styles)):
        axes.plot(degrees, values, line, color=color, label=f"{name}: formula")
    for name, (degrees, values) in measured.items():
        color, _, marker = styles[list(predicted).index(name) % len(styles)]
        axes.plot(degrees, values, marker, color=color, markersize=7, label=f"{name}: measured")
    axes.set_xscale("log", base=2)
    ticks = sorted({t for degrees, _ in measured.values() for t in degrees})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="t, ranks that share the block", ylabel=unit)
    axes.legend(frameon=False, fontsize=8)
    words = "; ".join(
        f"{name}, measured: " + ", ".join(f"{v:.4g} at t = {t:g}" for t, v in zip(*points, strict=True))
        for name, points in measured.items()
    )
    return Picture(figure, f"{unit} on one rank. {words}.")


def draw_losses(one: Sequence[float], many: Sequence[float], name: str) -> Picture:
    """The losses of one process and of several ranks on top of each other, and how far apart they are."""
    expect_some(one, "step")
    figure, (left, right) = new_figure(height=2.9, columns=2)
    steps = range(1, len(one) + 1)
    left.plot(steps, one, color=BLUE, linewidth=4, alpha=0.4, label="one process")
    left.plot(steps, many, "--", color=VERMILION, linewidth=1.4, label=name)
    left.set(xlabel="step", ylabel="loss, nats a token")
    left.legend(frameon=False, fontsize=8)
    apart = [abs(a - b) for a, b in zip(one, many, strict=True)]
    right.plot(steps, [max(d, 1e-17) for d in apart], color=INK, linewidth=1)
    right.set_yscale("log")
    largest = max(apart, key=lambda d: math.inf if math.isnan(d) else d)
    right.set_ylim(1e-17, max(1.0, 2 * largest) if math.isfinite(largest) else 1.0)
    right.set(xlabel="step", ylabel="difference of the losses")
    told = f"Loss from {one[0]:.3f} to {one[-1]:.3f} in {len(one)} steps, for one process and for {name}"
    return Picture(figure, f"{told}; they differ by at most {largest:.1e}.")
