"""What sharding the data-parallel state looks like: who holds which share, where the flat cut falls, and the
bytes of a rank over a step.
"""

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
    PALE,
    STATES,
    VERMILION,
    Picture,
    drawing_board,
    expect_some,
    new_figure,
    rank_color,
)
from labkit.theory.units import binary_text

ROWS = ("weights", "gradients", "optimizer")
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "weights": 3}
MIB = 2**20


def draw_stages(ranks: int = 4) -> Picture:
    """Who holds what in ZeRO's stages 0 to 3: a full box is held whole, a narrow one is a share.

    ValueError for a number of ranks whose shares could not be seen.
    """
    if not 1 <= ranks <= 8:
        raise ValueError(f"the stages can be drawn for 1 to 8 ranks, got {ranks}")
    figure, plots = new_figure(height=2.3, columns=4)
    for stage, axes in enumerate(plots):
        drawing_board(axes)
        axes.set_aspect("auto")
        for line, part in enumerate(ROWS):
            for rank in range(ranks):
                _box(axes, rank, line, part, ranks if stage >= SHARDED_FROM[part] else 1)
        for rank in range(ranks):
            name = f"rank {rank}" if ranks <= 4 else str(rank)
            axes.text(rank + 0.45, 3.15, name, ha="center", va="center", fontsize=7, color=INK)
        axes.set_xlim(-0.1, ranks + 0.1)
        axes.set_ylim(3.4, -0.1)
        axes.set_title(f"stage {stage}", fontsize=10, color=INK)
    handles = [Rectangle((0, 0), 1, 1, facecolor=STATES[part], label=part) for part in ROWS]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    told = "Stage 0 holds all of it on every rank; stage 1 shards the optimizer state, stage 2 the gradients"
    return Picture(figure, f"{told} too, stage 3 the weights too, over {ranks} ranks.")


def _box(axes: Axes, rank: int, line: int, part: str, shares: int) -> None:
    """One rank's part of one kind of state: at its own place among as many shares."""
    axes.add_patch(Rectangle((rank, line + 0.08), 0.9, 0.8, facecolor=PALE, edgecolor="white"))
    width = 0.9 / shares
    left = rank + (rank * width if shares > 1 else 0)
    box = Rectangle((left, line + 0.08), width, 0.8, facecolor=STATES[part], edgecolor=INK, linewidth=0.6)
    axes.add_patch(box)


def draw_flat_layout(
    shard_size: int, pieces: Sequence[Sequence[tuple[int, int, int]]], names: Sequence[str]
) -> Picture:
    """The flat tensor as one bar: above, the parameters it is made of; below, the ranks that own it.

    ValueError for a parameter that has no name.
    """
    expect_some(pieces, "rank")
    figure, (axes,) = new_figure(height=1.9)
    world_size, owned = len(pieces), [sum(stop - start for _, start, stop in own) for own in pieces]
    edges: dict[int, list[int]] = {}
    for rank, own in enumerate(pieces):
        at = rank * shard_size
        for parameter, start, stop in own:
            if parameter not in range(len(names)):
                raise ValueError(
                    f"pieces of rank {rank}: expected parameters of 0 to {len(names) - 1}, found {parameter}"
                )
            low, high = edges.get(parameter, [at, at])
            edges[parameter] = [min(low, at), max(high, at + stop - start)]
            at += stop - start
        _stretch(axes, 0.0, rank * shard_size, owned[rank], rank_color(rank), f"rank {rank}")
        _stretch(axes, 0.0, rank * shard_size + owned[rank], shard_size - owned[rank], "white", "")
    total = shard_size * world_size
    for number, (parameter, (low, high)) in enumerate(edges.items()):
        wide = high - low > 0.09 * total
        _stretch(axes, 1.0, low, high - low, GREY if number % 2 else PALE, names[parameter] if wide else "")
    for rank in range(1, world_size):
        axes.plot([rank * shard_size] * 2, [0.0, 1.85], color=VERMILION, linestyle="--", linewidth=1.4)
    axes.set(ylim=(-0.1, 2), xlim=(0, total), xlabel="element of the flat tensor (white: padding)")
    axes.set_yticks([0.4, 1.4], ["owner", "parameter"])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    told = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(owned))
    return Picture(figure, f"Shards of {shard_size} elements, cut through parameters. Owned: {told}.")


def _stretch(axes: Axes, y: float, left: float, width: float, color: str, text: str) -> None:
    axes.add_patch(Rectangle((left, y), width, 0.8, facecolor=color, edgecolor=INK, linewidth=0.6))
    if text:
        axes.text(left + width / 2, y + 0.4, text, ha="center", va="center", fontsize=7, color=INK)


def draw_over_a_step(histories: Mapping[str, Sequence[int]], predicted: Mapping[str, int]) -> Picture:
    """Bytes of a rank's tensors over the course of a step, one curve a plan.

    histories: plan -> bytes after each operation. predicted: plan -> bytes at the peak by a formula, dotted.
    """
    for held in (histories, *histories.values()):
        expect_some(held, "operation")
    figure, (axes,) = new_figure(3.4)
    styles = ((INK, "-"), (BLUE, "--"), (VERMILION, "-"), (GREEN, "-."))
    for (name, held), (color, line) in zip(histories.items(), cycle(styles)):
        progress = [100 * (i + 1) / len(held) for i in range(len(held))]
        axes.plot(progress, [b / MIB for b in held], color=color, linestyle=line, linewidth=1.6, label=name)
        axes.axhline(predicted[name] / MIB, color=color, linestyle=":", linewidth=1.2)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(101, predicted[name] / MIB, "predicted", color=INK, fontsize=7, va="center", bbox=box)
    axes.set(
        xlabel="operations of the step so far, in percent (forward, backward, optimizer)",
        ylabel="tensors alive on a rank, MiB",
        ylim=(0, None),
        xlim=(0, 108),
    )
    axes.legend(frameon=False, fontsize=9, loc="lower center", ncols=len(histories))
    peaks = "; ".join(
        f"{name}: at most {binary_text(max(held))}, predicted {binary_text(predicted[name])}"
        for name, held in histories.items()
    )
    return Picture(figure, f"Bytes alive on a rank during one step. {peaks}.")
