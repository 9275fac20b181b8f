"""What each device was doing at each moment, and how much of the time it did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.show.style import HATCHES, INK, KINDS, Picture, expect_some, kind_color, mark_guess, new_figure

BAR = 0.6


class Work(Protocol):
    """A stretch of time one stream of a device was at work, in seconds. labkit.devices.Busy is one."""

    @property
    def device(self) -> int:
        """Number of the device."""

    @property
    def stream(self) -> int:
        """Number of the stream on it."""

    @property
    def name(self) -> str:
        """What the bar may be called."""

    @property
    def kind(self) -> str:
        """What the bar is coloured by: a name of labkit.show.style."""

    @property
    def start(self) -> float:
        """Seconds since the timeline began."""

    @property
    def end(self) -> float:
        """Seconds since the timeline began."""


def draw_utilisation(
    timelines: Mapping[str, Sequence[Work]], guess_ms: float | EllipsisType | None = None
) -> Picture:
    """Draw a row for each device, a panel for each titled timeline, and beside a row the share of time it
    computed.

    A device whose copies go on a stream of their own has a second row for them. guess_ms: a predicted end.
    """
    expect_some(timelines, "timeline")
    ends = {title: _ends(works) for title, works in timelines.items()}
    width = max(1e-6, *(end - start for start, end in ends.values())) * 1e3  # not nothing: it is a scale
    rows = {title: _rows(works) for title, works in timelines.items()}
    heights = [len(lanes) for lanes in rows.values()]
    figure, _ = new_figure(height=0.75 + sum(0.42 * n + 0.55 for n in heights))
    figure.clear()
    panels = figure.subplots(len(timelines), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (title, works) in zip(panels, timelines.items(), strict=True):
        _draw_lanes(axes, works, rows[title], ends[title], width)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(guess_ms, (int, float)):
            mark_guess(axes, guess_ms)
    panels[-1].set_xlabel("milliseconds", fontsize=9)
    kinds = list(dict.fromkeys(w.kind for works in timelines.values() for w in works))
    figure.legend(handles=_legend(kinds), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return Picture(figure, _in_words(timelines, rows, ends))


def working_share(works: Sequence[Work], device: int) -> float:
    """The share of the time, from the first work on any device to the last, that a device computed."""
    return _share([w for w in works if w.device == device and w.stream == 0], _ends(works))


def _share(works: Sequence[Work], ends: tuple[float, float]) -> float:
    """The share of the time that the works of one row take; copies count where there is nothing else."""
    computing = [w for w in works if w.kind != "communication"] or works
    took = ends[1] - ends[0]
    return sum(w.end - w.start for w in computing) / took if took else 0.0


def _ends(works: Sequence[Work]) -> tuple[float, float]:
    expect_some(works, "stretch of work")
    return min(w.start for w in works), max(w.end for w in works)


def _rows(works: Sequence[Work]) -> list[tuple[int, int]]:
    return sorted({(w.device, w.stream) for w in works})


def _draw_lanes(
    axes: Axes, works: Sequence[Work], lanes: list[tuple[int, int]], ends: tuple[float, float], width: float
) -> None:
    start, end = ends
    for row, lane in enumerate(lanes):
        axes.barh(row, (end - start) * 1e3, BAR, color=KINDS["idle"])
        mine = [w for w in works if (w.device, w.stream) == lane]
        for work in mine:
            left, length = (work.start - start) * 1e3, (work.end - work.start) * 1e3
            axes.barh(
                row,
                length,
                BAR,
                left,
                color=kind_color(work.kind),
                hatch=HATCHES.get(work.kind, ""),
                edgecolor="white",
                linewidth=0.8 if length > width / 100 else 0,  # the edges of thin ones would hide them
            )
        axes.text(width * 1.015, row, f"{_share(mine, ends):.0%}", va="center", fontsize=9, color=INK)
    names = [f"cuda:{device}" if stream == 0 else f"cuda:{device}, copies" for device, stream in lanes]
    axes.set_yticks(range(len(lanes)), names, fontsize=9)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, width * 1.08)


def _legend(kinds: Sequence[str]) -> list[Patch]:
    return [
        Patch(facecolor=kind_color(kind), hatch=HATCHES.get(kind, ""), edgecolor="white", label=kind)
        for kind in [*kinds, "idle"]
    ]


def _in_words(
    timelines: Mapping[str, Sequence[Work]],
    rows: Mapping[str, list[tuple[int, int]]],
    ends: Mapping[str, tuple[float, float]],
) -> str:
    sentences = []
    for title, works in timelines.items():
        length = ends[title][1] - ends[title][0]
        shares = [
            f"cuda:{device} works {working_share(works, device):.0%}"
            for device, stream in rows[title]
            if stream == 0
        ]
        sentences.append(f"{title}: {length * 1e3:.0f} ms, {', '.join(shares)}")
    return "Device use over time. " + "; ".join(sentences) + "."
