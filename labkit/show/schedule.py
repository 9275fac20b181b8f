"""Pipeline schedules as pictures: who does what when, how much stands idle, how much is held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from labkit.pipeline import HasRecord, measured_bubble, work_spans
from labkit.show.style import INK, KINDS, ORANGE, PALE, Picture, expect_some, lettering, new_figure
from labkit.show.timeline import expect_job
from labkit.theory.schedule import Simulation

ROW = 0.36  # inches
BAR = 0.8  # of a row
COLORS: Mapping[str, str] = {
    "forward": KINDS["forward"],
    "backward": KINDS["backward"],
    "input_backward": KINDS["backward"],
    "weight_backward": ORANGE,
}
NAMES: Mapping[str, str] = {
    "forward": "F: forward",
    "backward": "B: backward",
    "input_backward": "I: gradient of the input",
    "weight_backward": "W: of the weights",
}


@dataclass(frozen=True)
class Block:
    """One action in a picture. chunk: which of the rank's stages it belongs to, from 0."""

    rank: int
    label: str
    kind: str
    start: float
    end: float
    chunk: int = 0


def draw_schedule(
    schedules: Simulation | Mapping[str, Simulation], unit: str = "time, in forwards of one rank"
) -> Picture:
    """Played schedules, one above the other on one time axis. What is not worked is shaded: the bubble."""
    named = dict(schedules) if isinstance(schedules, Mapping) else {"": schedules}
    _expect_played(named)
    panels = {
        _titled(name, played.bubble_fraction, played.makespan): _blocks(played)
        for name, played in named.items()
    }
    return _draw_panels(panels, unit)


def draw_measured(job: HasRecord, simulation: Simulation) -> Picture:
    """What a job's ranks did, above what the simulation says they would, on one axis in milliseconds.

    simulation: with costs in milliseconds.
    """
    expect_job(job, "draw_measured(job, simulation)")
    spans = work_spans(job)
    measured = [Block(s.rank, s.name, s.kind, s.start * 1e3, s.end * 1e3) for s in spans]
    took = max((b.end for b in measured), default=0.0)
    panels = {
        _titled("measured", measured_bubble(job), took, " ms"): measured,
        _titled("simulated", simulation.bubble_fraction, simulation.makespan, " ms"): _blocks(simulation),
    }
    return _draw_panels(panels, "milliseconds since the first forward began")


def draw_in_flight(schedules: Mapping[str, Simulation]) -> Picture:
    """Micro-batches held on each rank against time, one plot a schedule, on one scale."""
    _expect_played(schedules)
    count = len(schedules)
    figure, plots = new_figure(height=2.6, columns=count, sharey=True)
    top = max(s.peak_in_flight(r) for s in schedules.values() for r in range(len(s.starts)))
    for axes, (name, played) in zip(plots, schedules.items(), strict=True):
        ranks = len(played.starts)
        for rank in range(ranks):
            steps = [*played.in_flight(rank), (played.makespan, 0)]
            times, held = zip(*steps, strict=True)
            shade = 0.55 * rank / max(1, ranks - 1)
            label = f"rank {rank}: {played.peak_in_flight(rank)} at most"
            color = _lighter(KINDS["forward"], shade)
            axes.step(times, held, where="post", color=color, linewidth=1.8, label=label)
        axes.legend(fontsize=7, frameon=False, loc="upper right")
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xlabel("time, in forwards of one rank", fontsize=9)
        axes.set_ylim(0, top * 1.3)
    plots[0].set_ylabel("forwards without their backward", fontsize=9)
    peaks = {n: [s.peak_in_flight(r) for r in range(len(s.starts))] for n, s in schedules.items()}
    return Picture(
        figure, f"Micro-batches in flight against time. Peaks from the first rank to the last: {peaks}."
    )


def _expect_played(schedules: Mapping[str, object]) -> None:
    """TypeError for a schedule that was handed over as it is, a list of actions for each rank."""
    expect_some(schedules, "schedule")
    for name, played in schedules.items():
        if not isinstance(played, Simulation):
            raise TypeError(
                f"expected {name or 'a schedule'} played through, as simulate(schedule) returns it, "
                f"found a {type(played).__name__}"
            )


def draw_bubble(num_ranks: Sequence[int], num_micro_batches: Sequence[int]) -> Picture:
    """The bubble of GPipe and 1F1B against m, one line a p, by both definitions."""
    figure, plots = new_figure(height=3.0, columns=2)
    titles = ("idle time / working time", "idle time / all time")
    for axes, title, share in zip(plots, titles, (False, True), strict=True):
        for index, p in enumerate(num_ranks):
            values = [(p - 1) / (m + (p - 1) * share) * 100 for m in num_micro_batches]
            color = _lighter(KINDS["forward"], 0.55 * index / max(1, len(num_ranks) - 1))
            axes.plot(
                num_micro_batches,
                values,
                "os^Dv"[index % 5] + "-",
                color=color,
                label=f"p = {p}",
                markersize=4,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(num_micro_batches), [str(m) for m in num_micro_batches])
        axes.minorticks_off()
        axes.set_xlabel("micro-batches m", fontsize=9)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylim(0, 100 if share else 200)
        axes.grid(axis="y", color=PALE)
    plots[0].set_ylabel("percent", fontsize=9)
    plots[1].legend(fontsize=8, frameon=False)
    return Picture(
        figure,
        f"Bubble against micro-batches for p = {list(num_ranks)}: relative to working time it starts at p-1 "
        "and has no upper limit, relative to all time it stays below 100 percent.",
    )


def draw_bars(published: Mapping[str, float], ours: Mapping[str, float], title: str) -> Picture:
    """Published values as bars, with ours as marks on them. `ours` may leave some out."""
    expect_some(published, "bar")
    figure, (axes,) = new_figure(height=2.8)
    places = range(len(published))
    axes.bar(places, list(published.values()), color=PALE, edgecolor=INK, linewidth=0.6, label="published")
    found = [(i, ours[name]) for i, name in enumerate(published) if name in ours]
    axes.plot(
        *zip(*found, strict=True),
        "x",
        color=KINDS["backward"],
        markersize=7,
        label="your schedules, simulated",
    )
    for place, value in zip(places, published.values(), strict=True):
        axes.annotate(
            f"{value:.3g}", (place, value), (0, 4), textcoords="offset points", ha="center", fontsize=7
        )
    axes.set_xticks(list(places), list(published), fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_yscale("log")
    axes.set_ylim(top=2.5 * max(published.values()))
    axes.set_ylabel("idle / working time (log scale)", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return Picture(figure, f"{title}: {dict(published)}; simulated here: {dict(ours)}.")


def _titled(name: str, bubble: float, took: float, unit: str = "") -> str:
    text = f"{took:.4g}{unit} in all, {bubble:.1%} of it idle"
    return f"{name}: {text}" if name else text


def _blocks(played: Simulation) -> list[Block]:
    ranks = len(played.starts)
    return [
        Block(e.rank, e.action.label, e.action.kind, e.start, e.end, chunk=e.action.stage // max(1, ranks))
        for e in played.events()
    ]


def _draw_panels(panels: Mapping[str, Sequence[Block]], unit: str) -> Picture:
    end = max((b.end for blocks in panels.values() for b in blocks), default=1.0)
    rows = [1 + max((b.rank for b in blocks), default=0) for blocks in panels.values()]
    figure, _ = new_figure(height=0.9 + ROW * sum(rows) + 0.3 * len(panels))
    figure.clear()
    heights = {"height_ratios": rows}
    plots = figure.subplots(len(panels), 1, squeeze=False, sharex=True, gridspec_kw=heights)[:, 0]
    for axes, (title, blocks), ranks in zip(plots, panels.items(), rows, strict=True):
        _draw_rows(axes, blocks, ranks, end)
        axes.set_title(title, fontsize=10, loc="left")
    plots[-1].set_xlabel(unit, fontsize=9)
    _legend(plots[0], [b for blocks in panels.values() for b in blocks])
    return Picture(figure, "Pipeline schedules, one row a rank. " + ". ".join(panels) + ".")


def _draw_rows(axes: Axes, blocks: Sequence[Block], ranks: int, end: float) -> None:
    """The bubble goes from the panel's first start to its last end, behind the blocks."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set_xlim(-0.005 * end, 1.005 * end)
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    last = max((b.end for b in blocks), default=0.0)
    axes.barh(range(ranks), last, height=BAR, color=KINDS["idle"], zorder=0)
    for block in blocks:
        _draw_block(axes, block, end)


def _draw_block(axes: Axes, block: Block, end: float) -> None:
    """Later chunks are paler. A label goes in where it fits."""
    length = block.end - block.start
    color = _lighter(COLORS[block.kind], min(0.6, 0.45 * block.chunk))
    axes.barh(block.rank, length, left=block.start, height=BAR, color=color, edgecolor="white", linewidth=0.7)
    if length / end > 0.009 * len(block.label):
        middle, look = block.start + length / 2, lettering(color)
        axes.text(middle, block.rank, block.label, ha="center", va="center", fontsize=7, **look)


def _legend(axes: Axes, blocks: Sequence[Block]) -> None:
    kinds = [k for k in COLORS if any(b.kind == k for b in blocks)]
    marks = [Patch(facecolor=COLORS[k], label=NAMES[k]) for k in kinds]
    chunks = max((b.chunk for b in blocks), default=0)
    if chunks:
        marks.append(Patch(facecolor=_lighter(COLORS["forward"], 0.45), label="paler: later chunks"))
    marks.append(Patch(facecolor=KINDS["idle"], edgecolor=INK, linewidth=0.4, label="bubble: idle"))
    axes.figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=8)


def _lighter(color: str, share: float) -> tuple[float, float, float]:
    red, green, blue = (c + (1 - c) * share for c in to_rgb(color))
    return red, green, blue
