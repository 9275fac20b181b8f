"""Stacked bars of what fills a GPU's memory, drawn as SVG: quick enough to follow a slider, fit for print."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from labkit.show.style import GREY, INK, STATES, VERMILION, YELLOW
from labkit.theory.hardware import GPU
from labkit.theory.units import GIB, binary_text, bytes_text, in_gib

PARTS = {
    **{part: colour for part, colour in STATES.items() if part != "free"},
    "scores": "#8FD6C0",  # attention scores: activations, in a paler green
    "logits": YELLOW,
    "working": GREY,
}
HATCHED = {"gradients": "M0,6 L6,0", "activations": "M3,3 h.1", "working": "M0,0 L6,6"}

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _TOP = 800, 150, 165, 44, 26, 46


class Breakdown(Protocol):
    """Anything that says its bytes part by part, such as a MemoryBreakdown or a measured StepMemory."""

    def as_dict(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class MemoryBars:
    """One stacked bar a row, in GiB, against the memory of a GPU.

    rows: label -> part -> bytes. gpu: where the line is drawn; None for no line.
    """

    rows: Mapping[str, Mapping[str, float]]
    gpu: GPU | None = None
    title: str = ""

    @property
    def alt(self) -> str:
        """What the figure shows, in words."""
        return "; ".join(f"{label}: {bytes_text(sum(parts.values()))}" for label, parts in self.rows.items())

    def svg(self) -> str:
        """The figure as one SVG element."""
        height = _TOP + _ROW * len(self.rows) + 34
        body = [self._legend(), self._axis(height), *self._bars(), self._limit(height), *self._totals()]
        return (
            f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(self.alt)}" '
            f'style="width:100%;max-width:{_WIDTH}px;background:white;font:12px sans-serif" '
            f'xmlns="http://www.w3.org/2000/svg">{_patterns()}{"".join(body)}</svg>'
        )

    def _repr_html_(self) -> str:
        title = f"<div style='font-weight:600'>{html.escape(self.title)}</div>" if self.title else ""
        return title + self.svg()

    def __repr__(self) -> str:
        return f"[memory: {self.alt}]"

    @property
    def _most(self) -> float:
        totals = [sum(parts.values()) for parts in self.rows.values()]
        return max([*totals, (self.gpu.memory if self.gpu else 0), 1]) * 1.02

    def _x(self, num_bytes: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * num_bytes / self._most

    def _bars(self) -> list[str]:
        return [self._bar(row, label, parts) for row, (label, parts) in enumerate(self.rows.items())]

    def _bar(self, row: int, label: str, parts: Mapping[str, float]) -> str:
        top, start = _TOP + _ROW * row, 0.0
        drawn = [_text(_LEFT - 8, top + _BAR / 2 + 4, label, "end")]
        for part, num_bytes in parts.items():
            left, right = self._x(start), self._x(start + num_bytes)
            drawn.append(_block(part, left, top, right - left, f"{part}: {bytes_text(num_bytes)}"))
            start += num_bytes
        return "".join(drawn)

    def _totals(self) -> list[str]:
        """What each bar adds up to, at its end and above everything else."""
        return [self._total(row, sum(parts.values())) for row, parts in enumerate(self.rows.values())]

    def _total(self, row: int, total: float) -> str:
        x, top = self._x(total) + 6, _TOP + _ROW * row
        fits = self.gpu is None or total <= self.gpu.memory
        colour, note = (INK, "") if fits else (VERMILION, ", does not fit")
        decimal = bytes_text(total).split(" (")[0] + note
        binary = _text(x, top + 12, binary_text(total), colour=colour)
        return binary + _text(x, top + 26, decimal, colour=colour, size=10)

    def _legend(self) -> str:
        used = [p for p in PARTS if any(parts.get(p) for parts in self.rows.values())]
        return "".join(
            _block(part, _LEFT + 100 * i, 8, 14, part, height=14) + _text(_LEFT + 100 * i + 19, 20, part)
            for i, part in enumerate(used)
        )

    def _axis(self, height: float) -> str:
        most, bottom = in_gib(self._most), height - 30
        step = _round_step(most / 6)
        ticks = [step * i for i in range(int(most / step) + 1)]
        lines = [_grid_line(self._x(t * GIB), bottom, f"{t:g}") for t in ticks]
        return "".join(lines) + _text(_WIDTH - _RIGHT + 12, bottom + 14, "GiB", size=11)

    def _limit(self, height: float) -> str:
        if self.gpu is None:
            return ""
        x, bottom = self._x(self.gpu.memory), height - 30
        return (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{bottom}" stroke="{INK}" stroke-width="2" '
            f'stroke-dasharray="6 3"/>' + _text(x, bottom + 28, self.gpu.name, "middle", size=11)
        )


def _block(part: str, x: float, y: float, width: float, told: str, height: float = _BAR) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height}"'
    hatch = f'<rect {box} fill="url(#hatch-{part})"/>' if part in HATCHED else ""
    colour = PARTS.get(part, GREY)
    return f'<rect {box} fill="{colour}"><title>{html.escape(told)}</title></rect>{hatch}'


def _grid_line(x: float, bottom: float, label: str) -> str:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#dddddd"/>'
    return line + _text(x, bottom + 14, label, "middle", size=11)


def _patterns() -> str:
    """A second mark beside the colour, for print and for eyes that do not tell the colours apart."""
    look = f'stroke="{INK}" stroke-opacity=".45" stroke-width="1" stroke-linecap="round"'
    return "".join(
        f'<pattern id="hatch-{part}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" {look}/></pattern>'
        for part, path in HATCHED.items()
    )


def _text(x: float, y: float, what: str, anchor: str = "start", colour: str = INK, size: int = 12) -> str:
    look = f'fill="{colour}" font-size="{size}" stroke="white" stroke-width="3" style="paint-order:stroke"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{html.escape(what)}</text>'


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`."""
    power = 10 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def draw_memory(
    rows: Mapping[str, Breakdown | Mapping[str, float]], gpu: GPU | None = None, title: str = ""
) -> MemoryBars:
    """Stacked bars, one a row: label -> bytes by part, or anything with `as_dict()`."""
    plain = {label: row if isinstance(row, Mapping) else row.as_dict() for label, row in rows.items()}
    return MemoryBars(plain, gpu, title)
