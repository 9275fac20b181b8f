"""How much each rank of a job communicated, call by call, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from labkit.record import Collective
from labkit.show.style import GREEN, INK, PAPER, Picture, new_figure
from labkit.show.timeline import HasRecord, expect_job
from labkit.theory.units import binary_text

ROOM_FOR_A_LETTER = 0.0115  # of the longest bar, at the size pieces are named in
HATCH_OF_OP = {
    "all_reduce": "///",
    "all_gather": "...",
    "reduce_scatter": "\\\\\\",
    "broadcast": "xxx",
    "all_to_all": "ooo",
    "send": "--",
    "recv": "||",
}


def draw_traffic(job: HasRecord) -> Picture:
    """One bar a rank, one piece a call in the order of calling, as long as the bytes the rank put in."""
    expect_job(job, "draw_traffic(job)")
    by_rank = [
        sorted((c for c in job.collectives if c.rank == r), key=lambda c: c.order) for r in range(job.ranks)
    ]
    most = max((sum(c.num_bytes for c in calls) for calls in by_rank), default=0)
    figure, (axes,) = new_figure(height=1.1 + 0.36 * job.ranks)
    for rank, calls in enumerate(by_rank):
        _rank_bar(axes, rank, calls, most)
    axes.set_ylim(job.ranks - 0.4, -0.6)
    axes.set_xlim(0, most * 1.02 or 1)
    axes.set_yticks(range(job.ranks), [f"rank {rank}" for rank in range(job.ranks)])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MultipleLocator(2 ** max(0, math.ceil(math.log2(max(most, 1) / 6)))))
    axes.xaxis.set_major_formatter(lambda value, _: binary_text(round(value)))
    axes.set_xlabel("bytes this rank handed to its collectives", fontsize=9)
    _legend(figure, axes)
    return Picture(figure, _in_words(by_rank))


def _rank_bar(axes: Axes, rank: int, calls: Sequence[Collective], most: int) -> None:
    left = 0
    for call in calls:
        hatch = HATCH_OF_OP.get(call.op, "")
        axes.barh(
            rank,
            call.num_bytes,
            left=left,
            height=0.62,
            color=GREEN,
            alpha=0.75,
            hatch=hatch,
            edgecolor="white",
            label=call.op,
        )
        text = f"{call.op} {binary_text(call.num_bytes)}"
        if call.num_bytes > ROOM_FOR_A_LETTER * len(text) * most:
            middle = left + call.num_bytes / 2
            axes.text(middle, rank, text, ha="center", va="center", fontsize=8, color=INK, bbox=PAPER)
        left += call.num_bytes
    if not calls:
        axes.text(0, rank, " nothing", va="center", fontsize=8, color=INK)


def _legend(figure: Figure, axes: Axes) -> None:
    """One entry an operation."""
    handles = {str(bar.get_label()): bar for bar in axes.containers}
    if handles:
        figure.legend(
            handles=list(handles.values()), loc="outside lower center", ncols=7, frameon=False, fontsize=8
        )


def _in_words(by_rank: Sequence[Sequence[Collective]]) -> str:
    ranks = [
        f"rank {rank}: " + (", ".join(f"{c.op} of {binary_text(c.num_bytes)}" for c in calls) or "nothing")
        for rank, calls in enumerate(by_rank)
    ]
    return "Communication by rank. " + "; ".join(ranks) + "."
