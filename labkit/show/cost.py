"""What communication costs, as pictures: measured times beside a model's line, and bytes as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from labkit.show.style import (
    BLUE,
    GREEN,
    HATCHES,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    Picture,
    expect_some,
    new_figure,
)
from labkit.show.timeline import HasRecord, expect_job
from labkit.theory.units import binary_text

MARKS = ((VERMILION, "o"), (BLUE, "s"), (ORANGE, "^"), (PURPLE, "D"))


def draw_times(
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    model: Callable[[float], float] | None = None,
    model_label: str = "alpha-beta model",
) -> Picture:
    """Seconds over bytes, both on logarithmic scales: measured points, and the model as a line.

    measured: label -> (sizes in bytes, seconds). model: bytes -> seconds.
    """
    sizes = sorted({size for points in measured.values() for size in points[0]})
    expect_some(sizes, "measurement")
    figure, (axes,) = new_figure(height=3.4)
    if model is not None:
        low, high = sizes[0], sizes[-1]
        line = [low * (high / low) ** (i / 80) for i in range(81)]
        axes.plot(line, [model(s) for s in line], color=INK, linewidth=1.4, label=model_label)
    for (label, points), (color, mark) in zip(measured.items(), cycle(MARKS)):
        axes.plot(
            *points,
            mark,
            color=color,
            label=label,
            markersize=6,
            markerfacecolor="white",
            markeredgewidth=1.6,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes[:: max(1, len(sizes) // 8)])
    axes.xaxis.set_major_formatter(lambda value, _: _short(binary_text(round(value))))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: _seconds_text(value))
    axes.minorticks_off()
    axes.set_xlabel("bytes of the tensor, S", fontsize=9)
    axes.set_ylabel("time of one all-reduce", fontsize=9)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    ends = [f"{label}: {_seconds_text(t[0])} to {_seconds_text(t[-1])}" for label, (_, t) in measured.items()]
    words = f"from {binary_text(sizes[0])} to {binary_text(sizes[-1])}"
    return Picture(figure, f"Time of an all-reduce {words}. " + "; ".join(ends) + ".")


def draw_bytes_sent(jobs: Mapping[str, HasRecord]) -> Picture:
    """For each job a group of bars: the bytes that each of its ranks sent, by send."""
    expect_some(jobs, "job")
    for job in jobs.values():
        expect_job(job, 'draw_bytes_sent({"its name": job})')
    figure, plots = new_figure(height=2.6, columns=len(jobs), sharey=True)
    sent = {name: bytes_sent(job) for name, job in jobs.items()}
    most = max(max(values) for values in sent.values()) or 1
    for axes, (name, values) in zip(plots, sent.items(), strict=True):
        _bars(axes, [f"rank {rank}" for rank in range(len(values))], values, most)
        axes.set_title(name, fontsize=10, color=INK)
    plots[0].set_ylabel("bytes sent", fontsize=9)
    told = [f"{name}: {', '.join(map(binary_text, values))}" for name, values in sent.items()]
    return Picture(figure, "Bytes sent by each rank. " + "; ".join(told) + ".")


def draw_bytes(num_bytes: Mapping[str, float], label: str) -> Picture:
    """One bar a name. label: what the bars count."""
    expect_some(num_bytes, "bar")
    figure, (axes,) = new_figure(height=2.8)
    _bars(axes, list(num_bytes), list(num_bytes.values()), max(num_bytes.values()) or 1)
    axes.set_ylabel(label, fontsize=9)
    told = [f"{name} {binary_text(value)}" for name, value in num_bytes.items()]
    return Picture(figure, f"{label}: {', '.join(told)}.")


def bytes_sent(job: HasRecord) -> list[int]:
    """Bytes each rank of a job sent by send, in rank order."""
    return [
        sum(c.num_bytes for c in job.collectives if c.rank == rank and c.op == "send")
        for rank in range(job.ranks)
    ]


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], most: float) -> None:
    axes.bar(names, values, color=GREEN, hatch=HATCHES["communication"], edgecolor="white", width=0.62)
    for index, value in enumerate(values):
        axes.text(index, value + 0.02 * most, binary_text(value), ha="center", fontsize=9, color=INK)
    axes.set_ylim(0, 1.14 * most)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _short(text: str) -> str:
    """ "256.0 KiB" -> "256 KiB"."""
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _seconds_text(seconds: float) -> str:
    """0.0004 -> "0.4 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
