"""What the ranks of a job did and when, as a picture: one row a rank, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.record import Collective, Span
from labkit.show.style import (
    HATCHES,
    INK,
    PAPER,
    VERMILION,
    Picture,
    kind_color,
    lettering,
    mark_guess,
    new_figure,
)
from labkit.theory.units import binary_text

BAR = 0.62  # of a row's height
MOST_LEVELS = 5
_WHOLE, _UPPER, _LOWER = (0.0, BAR), (-0.1, 0.36), (0.2, 0.2)  # of a rank's row: offset and height
MARGIN = 0.02  # of the width: air on both sides
HALF_A_LETTER = 0.0052  # of the width, at the size the calls are named in; measured on drawn figures
MOST_LETTERS = 90  # of a name above the rows; for longer ones the axes would shrink


class HasRecord(Protocol):
    """What a figure needs of a job."""

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""

    @property
    def collectives(self) -> Sequence[Collective]:
        """Their calls, in seconds since the job began."""

    @property
    def timeline(self) -> Sequence[Span]:
        """What they did otherwise, in seconds since the job began."""


def expect_job(job: object, call: str) -> None:
    """TypeError for what is no job, such as its results. call: what should have been written."""
    if not hasattr(job, "ranks"):
        raise TypeError(
            f"expected a job, as labkit.launch returns it, found a {type(job).__name__}: "
            f"pass the job itself, {call}"
        )


def draw_timeline(
    job: HasRecord, *, guess_ms: float | EllipsisType | None = None, start_at: str = ""
) -> Picture:
    """Draw the regions that `labkit.span` named, and every collective with its bytes.

    Communication that goes on behind other work is drawn below it.
    guess_ms: a prediction in milliseconds from the first event, drawn as a line, or told above where it is
        beyond the last; `...` stands for none yet.
    start_at: leave out what began before the first region of this name.
    """
    expect_job(job, "draw_timeline(job)")
    spans = _spans(job)
    begin = min((s.start for s in spans if s.name == start_at), default=float("-inf"))
    spans = [span for span in spans if span.start >= begin]
    calls = sorted((c for c in job.collectives if c.start >= begin), key=lambda call: (call.start, call.rank))
    events = [(s.start, s.end) for s in spans] + [(c.start, c.end or c.start) for c in calls]
    if not events:
        return _nothing_recorded(job.ranks)
    origin, finish = min(start for start, _ in events), max(end for _, end in events)
    width = max((finish - origin) * 1e3, 1e-3)
    figure, (axes,) = new_figure(height=1.5 + 0.5 * job.ranks)
    _draw_bars(axes, spans, calls, origin, width)
    names = [*_names_of_calls(calls), *_names_without_room(spans, width / 1e3)]
    levels = _write_above(axes, [((at - origin) * 1e3, text) for at, text in sorted(names)], width)
    _finish_axes(axes, job.ranks, width, levels)
    if isinstance(guess_ms, (int, float)) and mark_guess(axes, guess_ms):
        axes.text(guess_ms, job.ranks - 0.45, " your guess", color=VERMILION, fontsize=8, va="center")
    _legend(figure, [s.kind for s in sorted(spans, key=lambda s: s.start)] + ["communication"] * bool(calls))
    return Picture(figure, _in_words(job.ranks, spans, calls, width))


def _spans(job: HasRecord) -> list[Span]:
    """The named regions, longest first so that what is inside stays visible; collectives are drawn apart, and
    a step, which is around others, is not.
    """
    calls = {(c.rank, c.op, c.start) for c in job.collectives}
    named = [s for s in job.timeline if (s.rank, s.name, s.start) not in calls and s.kind != "step"]
    return sorted(named, key=lambda s: s.start - s.end)


def _overlap(spans: Sequence[Span], calls: Sequence[Collective]) -> bool:
    """Whether some communication went on for most of its time while its rank did something else, or would
    hide most of what the rank did.
    """
    for call in calls:
        if call.end is None:
            continue
        others = [s for s in spans if s.rank == call.rank and s.kind != "communication"]
        behind = [max(0.0, min(s.end, call.end) - max(s.start, call.start)) for s in others]
        hides = any(t > 0.5 * (s.end - s.start) for s, t in zip(others, behind, strict=True))
        if hides or sum(behind) > 0.5 * (call.end - call.start):
            return True
    return False


def _draw_bars(
    axes: Axes, spans: Sequence[Span], calls: Sequence[Collective], origin: float, width: float
) -> None:
    """Regions with their names in them where there is room, and calls."""
    lane, call_lane = (_UPPER, _LOWER) if _overlap(spans, calls) else (_WHOLE, _WHOLE)
    for span in spans:
        left, length = (span.start - origin) * 1e3, (span.end - span.start) * 1e3
        _bar(axes, span.rank, left, length, span.kind, lane)
        if _has_room(span, spans, width / 1e3):
            look = {"color": INK, "bbox": PAPER} if span.kind in HATCHES else lettering(kind_color(span.kind))
            place = left + length / 2, span.rank + lane[0]
            axes.text(*place, span.name, fontsize=8, ha="center", va="center", **look)
    for call in calls:
        length = ((call.end or call.start) - call.start) * 1e3
        left = (call.start - origin) * 1e3
        _bar(axes, call.rank, left, max(length, 0.004 * width), "communication", call_lane)


def _bar(axes: Axes, rank: int, left: float, length: float, kind: str, lane: tuple[float, float]) -> None:
    axes.barh(
        rank + lane[0],
        length,
        left=left,
        height=lane[1],
        color=kind_color(kind),
        hatch=HATCHES.get(kind, ""),
        edgecolor="white",
        linewidth=0.8,
    )


def _has_room(span: Span, spans: Sequence[Span], seconds: float) -> bool:
    """Whether a region's name fits into its bar, of which no other region covers a part."""
    if span.end - span.start < 2 * HALF_A_LETTER * (len(span.name) + 1) * seconds:
        return False
    others = (other for other in spans if other.rank == span.rank and other is not span)
    return not any(span.start <= other.start and other.end <= span.end for other in others)


def _names_of_calls(calls: Sequence[Collective]) -> list[tuple[float, str]]:
    """The middle and the text of each call of the first rank."""
    first_rank = min((c.rank for c in calls), default=0)
    return [
        (
            (call.start + (call.end or call.start)) / 2,
            f"{call.op}, {binary_text(call.num_bytes)}" if call.num_bytes else call.op,
        )
        for call in calls
        if call.rank == first_rank
    ]


def _names_without_room(spans: Sequence[Span], seconds: float) -> list[tuple[float, str]]:
    """The middle and the name of the first rank's regions whose bar is too small for it, each name once."""
    first_rank = min((s.rank for s in spans), default=0)
    named = {span.name for span in spans if span.rank == first_rank and _has_room(span, spans, seconds)}
    found: dict[str, float] = {}
    for span in sorted(spans, key=lambda s: s.start):
        if span.rank == first_rank and span.name not in named:
            found.setdefault(span.name, (span.start + span.end) / 2)
    return [(middle, name) for name, middle in found.items()]


def _write_above(axes: Axes, names: Sequence[tuple[float, str]], width: float) -> int:
    """Write each text above the first row at its middle, a level higher where two would touch.

    Returns how many levels there are.
    """
    free_from: list[float] = []  # per level, where the last label ends
    for middle, name in names:
        text = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        half = HALF_A_LETTER * len(text) * width
        left = min(max(middle - half, 0), width - 2 * half)  # stay inside the axes
        level = next((i for i, end in enumerate(free_from) if left > end), len(free_from))
        if level == MOST_LEVELS:
            continue  # more names than a person would read; the description has them all
        free_from[level:] = [left + 2 * half, *free_from[level + 1 :]]
        height = -0.62 - 0.36 * level
        axes.plot([middle, middle], [-BAR / 2, height + 0.06], color=INK, linewidth=0.6, zorder=1)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(left + half, height, text, fontsize=8, ha="center", va="bottom", color=INK, bbox=box)
    return len(free_from)


def _finish_axes(axes: Axes, ranks: int, width: float, levels: int) -> None:
    axes.set_xlim(-MARGIN * width, (1 + MARGIN) * width)
    axes.set_ylim(ranks - 0.4, -0.6 - 0.36 * levels)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds since the first of these events", fontsize=9)


def _legend(figure: Figure, kinds: Sequence[str]) -> None:
    patches = [
        Patch(facecolor=kind_color(kind), hatch=HATCHES.get(kind, ""), edgecolor="white", label=kind)
        for kind in dict.fromkeys(kinds)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=8)


def _nothing_recorded(ranks: int) -> Picture:
    figure, (axes,) = new_figure(height=0.8)
    axes.set_axis_off()
    message = "No communication and no named region was recorded."
    axes.text(0.5, 0.5, message, ha="center", va="center", fontsize=10)
    return Picture(figure, f"Timeline of {ranks} ranks: {message}")


def _in_words(ranks: int, spans: Sequence[Span], calls: Sequence[Collective], width: float) -> str:
    regions = ", ".join(dict.fromkeys(s.name for s in spans)) or "none"
    on_first = [f"{c.op} of {binary_text(c.num_bytes)}" for c in calls if c.rank == 0]
    return (
        f"Timeline of {ranks} ranks over {width:.1f} ms. Regions: {regions}. "
        f"Communication of rank 0: {', '.join(on_first) or 'none'}."
    )
